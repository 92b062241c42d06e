"""Overflow check of gradients before a step of ZeRO-1 and ZeRO-2."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, replace


@replace(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.has_overflow_partitioned_grads_serial",
    requires="deepspeed>=0.13.3",
    devices=("cuda", "npu"),
    bodies="f8f6cd9e8b089e09",
    why="it checks each gradient in several small operations, so a fast device is launch-bound",
    until="DeepSpeed checks all gradients in a few operations",
    without="slower",
    symptom=Symptom("invalid_grad_count += self._has_inf_or_nan(grad)"),
)
def batched_overflow_check(self: Any) -> Any:
    """Return whether a gradient of this rank's partitions contains Inf or NaN, as bool [1] on the device."""
    import torch

    groups = [self.averaged_gradients[i] for i in range(len(self.bit16_groups))]
    # From 0.19.2 on, ``flat_gradient_without_copy`` may provide the partition of which the gradients are slices.
    flat = [getattr(group, "flat_partition", None) for group in groups]
    parts = [group if whole is None else [whole] for group, whole in zip(groups, flat, strict=True)]
    found = [grad for part in parts for grad in part if grad is not None]
    dense = [grad._values() if grad.is_sparse else grad for grad in found]
    filled = [grad for grad in dense if grad.numel()]
    if not filled:
        from deepspeed.accelerator import get_accelerator

        return torch.zeros(1, dtype=torch.bool, device=get_accelerator().current_device_name())
    # The infinity norm is Inf or NaN if any value is.
    largest = torch.stack(torch._foreach_norm(filled, float("inf")))
    return ~torch.isfinite(largest).all().reshape(1)
