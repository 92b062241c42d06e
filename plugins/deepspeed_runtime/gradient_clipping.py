"""Warning for gradient clipping that some releases skip in ZeRO-1 and ZeRO-2; their arithmetic is unchanged."""

from __future__ import annotations

import functools
import logging
from typing import Any

from ascend_adapt import Call, Symptom, wrap

logger = logging.getLogger("ascend_adapt")


@wrap(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.step",
    name="warn_unclipped_gradients",
    requires="deepspeed>=0.9.2,<0.10",
    why="ZeRO-1 and ZeRO-2 silently clip only float16 gradients, on every device",
    until="support for DeepSpeed 0.9.5 ends",
    without="wrong numbers",
    symptom=Symptom(
        "if self.dtype == torch.float16: self.unscale_and_clip_grads([single_grad_partition], scaled_global_grad_norm)"
    ),
)
def warn_of_unclipped_gradients(call: Call) -> Any:
    """Warn once, on rank 0, that gradient_clipping has no effect; the step is unchanged."""
    import torch

    optimizer = call.instance
    if optimizer.clip_grad > 0 and optimizer.dtype != torch.float16:
        _warn(optimizer.clip_grad, str(optimizer.dtype).removeprefix("torch."))
    return call.proceed()


@functools.cache
def _warn(limit: float, dtype: str) -> None:
    import torch.distributed

    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        logger.warning(
            "ascend_adapt: gradient_clipping %s: ZeRO-1 and ZeRO-2 of this DeepSpeed only clip float16, not %s, "
            "also on a GPU — use DeepSpeed 0.10 or newer, or 0.9.1 or older, to clip gradients",
            limit,
            dtype,
        )
