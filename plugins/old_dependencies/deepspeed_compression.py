"""``deepspeed.compression.compress``, which DeepSpeed's distributions lack from 0.19.7 on."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ascend_adapt import provide

from ..code_bases import MEGATRON_DEEPSPEED


@provide(
    "deepspeed.compression.compress",
    host=MEGATRON_DEEPSPEED,
    why="megatron.training imports it at its top; it is called for --compression-training only",
    until="DeepSpeed ships it again, or Megatron-DeepSpeed imports it where it compresses",
    without="crash",
)
def deepspeed_compress(module: ModuleType) -> None:
    """Fill in the two functions; to call one is an error that says what is missing."""

    def unavailable(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(
            "deepspeed.compression.compress: this DeepSpeed lacks it, and --compression-training needs it — "
            "install deepspeed<0.19.7, or train without compression",
            name=module.__name__,
        )

    module.init_compression = module.redundancy_clean = unavailable  # type: ignore[attr-defined]
