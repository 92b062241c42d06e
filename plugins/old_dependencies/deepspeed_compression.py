"""Provides ``deepspeed.compression.compress``, which is missing in DeepSpeed since 0.19.7."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ascend_adapt import provide

from ..code_bases import MEGATRON_DEEPSPEED


@provide(
    "deepspeed.compression.compress",
    host=MEGATRON_DEEPSPEED,
    why="megatron.training imports it unconditionally, but only calls it for --compression-training",
    until="DeepSpeed ships it again, or Megatron-DeepSpeed only imports it for compression",
    without="crash",
)
def deepspeed_compress(module: ModuleType) -> None:
    """Provide the two functions; a call of either raises an error with the next step."""

    def unavailable(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(
            "deepspeed.compression.compress: is missing in this DeepSpeed, but --compression-training needs it — "
            "install deepspeed<0.19.7, or train without compression",
            name=module.__name__,
        )

    module.init_compression = module.redundancy_clean = unavailable  # type: ignore[attr-defined]
