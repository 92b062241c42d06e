"""npu_swiglu and its gradient: SiLU of the first half times the second half. npu_swiglu_quant quantises it."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.quantised import LARGEST, clamped, of_rows, target
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import swiglu as limits


@kernel("npu_swiglu", needs_a2=True)
def swiglu(self: torch.Tensor, dim: int) -> torch.Tensor:
    """Return silu(a) * b for the halves a, b along ``dim``."""
    _require(self, dim)
    first, second = wide(self).chunk(2, dim)
    return (torch.nn.functional.silu(first) * second).to(self.dtype)


@kernel("npu_swiglu_backward", needs_a2=True)
def swiglu_backward(grad_output: torch.Tensor, self: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient of the input."""
    _require(self, dim)
    first, second = wide(self).chunk(2, dim)
    gate = torch.sigmoid(first)
    dy = wide(grad_output)
    slope = gate * (1 + first * (1 - gate))
    return torch.cat((dy * second * slope, dy * first * gate), dim).to(self.dtype)


@kernel("npu_swiglu_quant", needs_a2=True)
def swiglu_quant(
    x: torch.Tensor,
    smooth_scales: torch.Tensor | None,
    offsets: torch.Tensor | None,
    group_index: torch.Tensor | None,
    activate_left: bool,
    quant_mode: int,
    group_list_type: int,
    dst_type: int | torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return SwiGLU times the smooth scales as integers, and with ``quant_mode`` 1 what each row was multiplied by.

    That is 127 / its largest absolute value, float32 (op-plugin@5045ad2 test/test_custom_ops/test_npu_swiglu_quant.py).
    With ``quant_mode`` 0 the offsets are added before rounding. Each group of rows has its own scales, [G, N] or [G];
    the groups are given by their ends, or with ``group_list_type`` 1 by their lengths. SiLU is of the second half
    unless ``activate_left``.
    """
    first, second = x.detach().float().chunk(2, -1)
    y = torch.nn.functional.silu(first) * second if activate_left else first * torch.nn.functional.silu(second)
    rows = y.reshape(-1, y.shape[-1])
    ends = None if group_index is None else group_index.cumsum(0) if group_list_type == 1 else group_index

    def of_each_row(values: torch.Tensor) -> torch.Tensor:
        groups = values.detach().float().reshape(values.shape[0], -1)
        return groups if ends is None else of_rows(groups, ends, len(rows))

    rows = rows if smooth_scales is None else rows * of_each_row(smooth_scales)
    to = target(dst_type)
    factors = rows.new_ones(len(rows))
    if quant_mode == 1:
        factors = LARGEST[to] / rows.abs().amax(-1)
        rows = rows * factors.unsqueeze(-1)
    elif offsets is not None:
        rows = rows + of_each_row(offsets)
    return clamped(rows.round(), to).reshape(*x.shape[:-1], -1), factors.reshape(x.shape[:-1])


def _require(x: torch.Tensor, dim: int) -> None:
    limits.DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
    limits.NOT_EMPTY.require(x.numel() > 0 and x.dim() in limits.DIMENSIONS, f"input is {shape(x)}")
    inside = -x.dim() <= dim < x.dim()
    limits.EVEN.require(inside and x.shape[dim] % 2 == 0, f"dim is {dim}, input is {shape(x)}")
    limits.CONTIGUOUS.require(x.is_contiguous(), f"input is {shape(x)} with strides {list(x.stride())}")
