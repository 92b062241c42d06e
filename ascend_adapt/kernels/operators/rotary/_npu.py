"""torch_npu's rotary multiplication, within its documented limits (those without JIT compilation)."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.operators.rotary._reference import turning, with_the_rest

ROTARY_MUL = npu.Operator(
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
    ("self", "r1", "r2", "rotary_mode"),
)
# Which of the first three axes the angles have, of BNSD, BSND and SBND in turn: 11SD, B1SD, BNSD; 1S1D, ...
_HALF = {(0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 0), (1, 1, 0), (1, 0, 0)}
_INTERLEAVED = {(0, 0, 1), (0, 1, 0), (1, 0, 0)}


def supports(call: RotaryCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if reason := npu.dtype_reason(call.x, call.cos, call.sin):
        return reason
    if call.x.dim() != 4:
        return f"x {list(call.x.shape)} has not 4 axes"
    if call.cos.requires_grad or call.sin.requires_grad:
        return "the gradients of cos and sin have limits of their own"
    if call.cos.shape[-1] >= 896:
        return f"{call.cos.shape[-1]} are turned, not less than 896"
    if _axes(call) not in (_INTERLEAVED if call.interleaved else _HALF):
        return f"cos {list(call.cos.shape)} is in none of the layouts for x {list(call.x.shape)}"
    batch, heads = _batch_and_heads(call)
    if (batch * heads if call.interleaved else max(batch, heads)) >= 1000:
        return f"batch and heads {batch} and {heads} are not less than 1000{' together' if call.interleaved else ''}"
    return ROTARY_MUL.difference()


def _axes(call: RotaryCall) -> tuple[int, ...]:
    """Return which of the first three axes of x the angles have too; one that x has once counts as not."""
    shape = (1,) * (4 - call.cos.dim()) + tuple(call.cos.shape)
    return tuple(int(size > 1) for size in shape[:3])


def _batch_and_heads(call: RotaryCall) -> tuple[int, int]:
    """Return the sizes of x beside that of its positions: the axis that the angles have, or the longest."""
    axes, sizes = _axes(call), call.x.shape[:3]
    positions = axes.index(1) if sum(axes) == 1 else list(sizes).index(max(sizes))
    batch, heads = (size for axis, size in enumerate(sizes) if axis != positions)
    return batch, heads


def run(call: RotaryCall) -> torch.Tensor:
    """Return the turned tensor."""
    cos, sin = (each[(None,) * (4 - each.dim())].contiguous() for each in (call.cos, call.sin))
    mode = "interleave" if call.interleaved else "half"
    return with_the_rest(ROTARY_MUL(turning(call).contiguous(), cos, sin, mode), call)
