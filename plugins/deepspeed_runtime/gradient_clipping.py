"""Gradient clipping that some releases of ZeRO-1 and ZeRO-2 leave out: told, and their arithmetic left alone."""

from __future__ import annotations

import functools
import logging
from typing import Any

from ascend_adapt import Symptom, wrap

logger = logging.getLogger("ascend_adapt")


@wrap(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.step",
    requires="deepspeed>=0.9.2,<0.10",
    why="ZeRO-1 and ZeRO-2 clip gradients in float16 only, on every device, and say nothing of it",
    until="support for DeepSpeed 0.9.5 ends",
    without="wrong numbers",
    symptom=Symptom(
        "if self.dtype == torch.float16: self.unscale_and_clip_grads([single_grad_partition], scaled_global_grad_norm)"
    ),
)
def unclipped_gradients_are_told(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Warn once, on the first rank, of gradient_clipping that is not done; the step is DeepSpeed's."""
    import torch

    if instance.clip_grad > 0 and instance.dtype != torch.float16:
        _tell(instance.clip_grad, str(instance.dtype).removeprefix("torch."))
    return wrapped(*args, **kwargs)


@functools.cache
def _tell(limit: float, dtype: str) -> None:
    import torch.distributed

    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        logger.warning(
            "ascend_adapt: gradient_clipping %s: this DeepSpeed's ZeRO-1 and ZeRO-2 clip float16 only, not %s, on a "
            "GPU as well — take DeepSpeed 0.10 or later, or 0.9.1 or earlier, to have gradients clipped",
            limit,
            dtype,
        )
