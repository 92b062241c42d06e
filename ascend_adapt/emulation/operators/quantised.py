"""int8 operators: quantisation with fixed or per-row scales, and products of quantised matrices.

An int64 scale, which npu_trans_quant_param creates, holds the bits of a float32 in its lower half. Eight 4-bit
integers (torch.quint4x2) are one int32, the first in its lowest bits; products of them, and the 8-bit floats of an
Ascend950, are not emulated. Source: op-plugin@517f2e7 docs torch_npu-npu_quantize.md, -npu_dynamic_quant.md,
-npu_group_quant.md, -npu_quant_scatter.md, -npu_quant_matmul.md, -npu_trans_quant_param.md,
-npu_weight_quant_batchmatmul.md.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.scalar_types import dtype_of
from ascend_adapt.emulation.operators.slicing import write_blocks
from ascend_adapt.emulation.operators.tensors import dtype as name_of
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits import quantised as limits

_STORED_AS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
LARGEST = {torch.int8: 127, torch.quint4x2: 7}
"""The largest value of each dtype that quantisation to a range uses."""
_BITS = 4
_IN_INT32 = 8
_MARK = 1 << 46
"""Bit that npu_trans_quant_param sets in a scale for a float16 result."""
_KEPT_BITS = -1 << 13
"""Number of upper bits of a float32 that the device keeps."""


@kernel("npu_quantize")
def quantize(
    self: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, dtype: int, axis: int, div_mode: bool
) -> torch.Tensor:
    """Return round(x / scales) + zero_points as integers, or round(x * scales + zero_points) without ``div_mode``."""
    to = _integer(dtype)
    scale = _along(wide(scales), self, axis)
    offset = 0 if zero_points is None else _along(wide(zero_points), self, axis)
    x = wide(self)
    return clamped((x / scale).round() + offset if div_mode else (x * scale + offset).round(), to)


@kernel("npu_dynamic_quant")
def dynamic_quant(
    input: torch.Tensor,
    smooth_scales: torch.Tensor | None,
    group_index: torch.Tensor | None,
    dst_type: int | torch.dtype | None,
    quant_mode: str = "pertoken",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers [..., H], int8 by default, and the float32 scale of each row: its largest absolute value / 127.

    4 bits are packed, [..., H / 8] int32, and the divisor is 7.
    """
    return with_scale_of_rows(_smoothed(input, smooth_scales, group_index), target(dst_type), _axis(quant_mode))


@kernel("npu_dynamic_quant_asymmetric")
def dynamic_quant_asymmetric(
    input: torch.Tensor,
    smooth_scales: torch.Tensor | None,
    group_index: torch.Tensor | None,
    dst_type: int | torch.dtype | None,
    quant_mode: str = "pertoken",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers [..., H], and the float32 scale and offset of each row that map its range to [-128, 127]."""
    x, to, axis = _smoothed(input, smooth_scales, group_index), target(dst_type), _axis(quant_mode)
    largest, smallest = x.amax(axis, keepdim=True), x.amin(axis, keepdim=True)
    scale = (largest - smallest) / (2 * LARGEST[to] + 1)
    offset = LARGEST[to] - largest / scale
    return clamped((x / scale + offset).round(), to), scale.squeeze(axis).float(), offset.squeeze(axis).float()


@kernel("npu_group_quant", needs_a2=True)
def group_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    group_index: torch.Tensor,
    offset: torch.Tensor | None,
    dst_dtype: int | torch.dtype | None,
) -> torch.Tensor:
    """Return round(x * scale + offset) of rows [S, H], the scale [G, H] of a row being that of its group."""
    values = wide(x) * of_rows(wide(scale), group_index, x.shape[0])
    return clamped((values if offset is None else values + wide(offset)).round(), target(dst_dtype))


@kernel("npu_quant_scatter")
def quant_scatter(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None,
    axis: int,
    quant_axis: int,
    reduce: str,
) -> torch.Tensor:
    """Return a copy of the int8 input with the quantised ``updates``, as ``npu_quant_scatter_`` writes them."""
    given = indices, updates, quant_scales, quant_zero_points, axis, quant_axis, reduce
    written: torch.Tensor = quant_scatter_in_place(self.detach().clone(), *given)
    return written


@kernel("npu_quant_scatter_")
def quant_scatter_in_place(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None,
    axis: int,
    quant_axis: int,
    reduce: str,
) -> torch.Tensor:
    """Write round(updates / scales) + zero points into the int8 input, along ``axis`` from an index on.

    ``indices`` are those of the first dimension's entries, [B], or pairs of an entry and its index, [B, 2].
    """
    _require_int8("npu_quant_scatter", self)
    limits.UPDATE.require(reduce == "update", f"reduce is {reduce!r}")
    zeros = None if quant_zero_points is None else quant_zero_points.reshape(-1)
    values = quantize(updates, quant_scales.reshape(-1), zeros, torch.int8, quant_axis, True)
    return write_blocks(self, indices, values, axis)


@kernel("npu_anti_quant")
def anti_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    dst_dtype: int | torch.dtype | None,
    src_dtype: int | torch.dtype | None,
) -> torch.Tensor:
    """Return (x + offset) * scale in ``dst_dtype``, float16 by default."""
    _require_int8("npu_anti_quant", x)
    shifted = wide(x) if offset is None else wide(x) + wide(offset)
    return (shifted * wide(scale)).to(torch.float16 if dst_dtype is None else dtype_of(dst_dtype))


@kernel("npu_trans_quant_param")
def trans_quant_param(scale: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
    """Pack scales, and 9-bit offsets, into int64 for a product of quantised matrices."""
    bits = (scale.detach().float().contiguous().view(torch.int32) & _KEPT_BITS).to(torch.int64) & 0xFFFFFFFF
    packed = bits | _MARK
    if offset is not None:
        shift = offset.detach().float().round().clamp(-256, 255).to(torch.int64) & 0x1FF
        packed = packed | (shift << 37)
    return packed


@kernel("npu_quant_matmul")
def quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_dtype: int | torch.dtype | None,
) -> torch.Tensor:
    """Return (x1 @ x2 + bias) * scale * pertoken_scale + offset of int8 matrices, in int8 unless a dtype is given."""
    _require_int8("npu_quant_matmul", x1, x2)
    limits.INNER.require(x1.shape[-1] == x2.shape[-2], f"x1 is {shape(x1)}, x2 is {shape(x2)}")
    to = torch.int8 if output_dtype is None else dtype_of(output_dtype)
    product = x1.double() @ x2.double()  # Exact, because sums of int8 products are integers below 2^53.
    late = bias is not None and bias.dtype != torch.int32
    product = product if bias is None or late else product + bias.double()
    if to == torch.int32:
        return product.to(to)
    product = product * as_float(scale).double()
    if pertoken_scale is not None:
        product = product * pertoken_scale.detach().double().unsqueeze(-1)
    if bias is not None and late:
        product = product + bias.detach().double()
    product = product if offset is None else product + offset.detach().double()
    return clamped(product.round(), to) if not to.is_floating_point else product.to(to)


@kernel("npu_weight_quant_batchmatmul")
def weight_quant_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None,
    quant_scale: torch.Tensor | None,
    quant_offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    antiquant_group_size: int,
) -> torch.Tensor:
    """Return x @ ((weight + antiquant_offset) * antiquant_scale) + bias, for an int8 weight [K, N]."""
    _require_int8("npu_weight_quant_batchmatmul", weight)
    limits.INNER.require(x.shape[-1] == weight.shape[-2], f"x is {shape(x)}, weight is {shape(weight)}")
    scale, shift = (_for_each_row(one, weight, antiquant_group_size) for one in (antiquant_scale, antiquant_offset))
    # Ascend/pytorch test/contrib/test_linear_weight_quant.py: weights become float16 again in two roundings.
    narrow = torch.float16 if x.dtype == torch.float16 else torch.float32
    matrix = (wide(weight) if shift is None else wide(weight) + shift).to(narrow)
    product = wide(x) @ wide((wide(matrix) * scale).to(narrow))
    product = product if bias is None else product + wide(bias)
    if quant_scale is None:
        return product.to(x.dtype)
    product = product * as_float(quant_scale)
    return clamped((product if quant_offset is None else product + wide(quant_offset)).round(), torch.int8)


def as_float(scale: torch.Tensor) -> torch.Tensor:
    """Return a scale as float; the lower half of an int64 scale has the bits of a float32."""
    return wide(scale.to(torch.int32).view(torch.float32) if scale.dtype == torch.int64 else scale)


def target(dtype: int | torch.dtype | None) -> torch.dtype:
    """Return the dtype of quantised values: int8, the default, or quint4x2.

    Raises:
        OperatorMissing: it is another one.
    """
    to = torch.int8 if dtype is None else _integer(dtype)
    if to not in LARGEST:
        raise OperatorMissing(f"npu quantisation to {name_of(to)}: expected int8 or quint4x2 — others are not emulated")
    return to


def with_scale_of_rows(x: torch.Tensor, to: torch.dtype, axis: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the quantised values, and the float32 scale of each row."""
    scale = x.abs().amax(axis, keepdim=True) / LARGEST[to]
    return clamped((x / scale).round(), to), scale.squeeze(axis).float()


def of_rows(values: torch.Tensor, group_index: torch.Tensor, count: int) -> torch.Tensor:
    """Return the values [G, ...] for each of ``count`` rows, 1 after the last group; ``group_index``: groups' ends."""
    if values.is_meta:
        return values.new_empty((count, *values.shape[1:]))
    lengths = torch.diff(group_index, prepend=group_index.new_zeros(1)).clamp(min=0)
    repeated = values.repeat_interleave(lengths, 0)
    return torch.cat((repeated, repeated.new_ones(count - len(repeated), *repeated.shape[1:])))


def clamped(x: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """Return integral values in an integer dtype; quint4x2 as [..., H / 8] int32."""
    if to != torch.quint4x2:
        bounds = torch.iinfo(to)
        return x.clamp(bounds.min, bounds.max).to(to)
    limits.PACKED.require(x.shape[-1] % _IN_INT32 == 0, f"the input is {shape(x)}")
    codes = x.clamp(-8, 7).to(torch.int64).remainder(1 << _BITS).unflatten(-1, (-1, _IN_INT32))
    return (codes << torch.arange(0, 32, _BITS, device=x.device)).sum(-1).to(torch.int32)


def _smoothed(x: torch.Tensor, smooth: torch.Tensor | None, group_index: torch.Tensor | None) -> torch.Tensor:
    """Return the input multiplied by its smooth scales."""
    values = x.detach().float()
    if smooth is not None and group_index is not None:
        rows = values.reshape(-1, values.shape[-1])
        return (rows * of_rows(smooth.detach().float(), group_index, len(rows))).reshape(values.shape)
    return values if smooth is None else values * smooth.detach().float()


def _axis(mode: str) -> int:
    """Return the dimension that shares a scale."""
    if mode not in ("pertoken", "perchannel", "pertensor"):
        raise OperatorMissing(f"npu::npu_dynamic_quant: quant_mode={mode!r}, expected 'pertoken' or 'perchannel'")
    return -2 if mode == "perchannel" else -1


def _integer(dtype: int | torch.dtype) -> torch.dtype:
    """Return the dtype in which a quantised dtype is stored."""
    named = dtype_of(dtype)
    return _STORED_AS.get(named, named)


def _along(values: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Reshape one value per index of a dimension, so that it broadcasts to ``x``."""
    if values.numel() == 1 or values.dim() > 1:
        return values
    return values.reshape([-1 if place == axis % x.dim() else 1 for place in range(x.dim())])


def _for_each_row(values: torch.Tensor | None, weight: torch.Tensor, group: int) -> torch.Tensor | None:
    """Return scales [1, N], or scales [K / group, N] repeated for the rows of a weight [K, N]."""
    if values is None:
        return None
    return wide(values).repeat_interleave(group, -2)[..., : weight.shape[-2], :] if group else wide(values)


def _require_int8(operator: str, *tensors: torch.Tensor) -> None:
    if any(one.dtype == torch.int32 for one in tensors):
        raise OperatorMissing(f"npu::{operator}: 4-bit integers — the emulation does not support them")
    limits.INT8.require(
        all(one.dtype == torch.int8 for one in tensors), f"{operator} has {', '.join(map(name_of, tensors))}"
    )
