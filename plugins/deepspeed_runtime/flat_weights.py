"""Weights of ZeRO-1 and ZeRO-2 that are slices of one flat buffer per parameter group."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._update_model_bit16_weights",
    requires="deepspeed>=0.6.0",
    devices=("cuda", "npu"),
    why="after each step it assigns every parameter its slice of the flat buffer twice, although the parameter still "
    "has it; the device waits for the host",
    until="DeepSpeed assigns slices only when a parameter or the buffer has moved",
    without="slower",
    symptom=Symptom("param.data = self.round_robin_bit16_groups[group_index][new_index].data"),
)
def slice_moved_weights(call: Call) -> Any:
    """Do nothing if every parameter of the group is already the slice that DeepSpeed would assign."""
    return None if _in_place(call.instance, call["group_index"]) else call.proceed()


def _in_place(optimizer: Any, index: int) -> bool:
    flat, params = optimizer.bit16_groups_flat[index], optimizer.round_robin_bit16_groups[index]
    if hasattr(optimizer, "round_robin_bit16_meta"):  # from 0.13 on; a parameter may be empty while it is offloaded
        shapes = [meta.shape for meta in optimizer.round_robin_bit16_meta[index]]
    else:
        shapes = [param.shape for param in params]
    if hasattr(optimizer, "round_robin_bit16_offsets"):  # with padding in between, from 0.19.7 on
        offsets = optimizer.round_robin_bit16_offsets[index]
    else:
        offsets = accumulate((shape.numel() for shape in shapes), initial=0)
    first, size, dtype = flat.data_ptr(), flat.element_size(), flat.dtype
    return all(
        param.data_ptr() == first + offset * size
        and param.shape == shape
        and param.dtype == dtype
        and param.is_contiguous()
        for param, shape, offset in zip(params, shapes, offsets, strict=False)
    )
