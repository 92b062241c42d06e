"""npu_grouped_matmul and npu_grouped_matmul_add: one matrix product per group, such as per expert.

Source: op-plugin@517f2e7 docs torch_npu-npu_grouped_matmul.md and opapi/GroupedMatmulKernelNpuOpApi.cpp. Products of
floating matrices, and of int8 with scales for each column and each token; 4-bit weights are not emulated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from ascend_adapt.emulation.full_size import values
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.quantised import as_float
from ascend_adapt.emulation.operators.scalar_types import dtype_of
from ascend_adapt.emulation.operators.tensors import dtype as name_of
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits import grouped_matmul as limits

_ALONG_ROWS, _ALONG_SUM = 0, 2
_ACTIVATIONS = {
    1: torch.relu,
    2: lambda x: functional.gelu(x, approximate="tanh"),
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: functional.silu,
}


@kernel("npu_grouped_matmul", "npu_grouped_matmul.List")
def grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    bias: list[torch.Tensor] | None,
    scale: list[torch.Tensor] | None,
    antiquant_scale: list[torch.Tensor] | None,
    antiquant_offset: list[torch.Tensor] | None,
    per_token_scale: list[torch.Tensor] | None,
    group_list: torch.Tensor | list[int] | None,
    split_item: int | None,
    group_type: int | None,
    group_list_type: int | None,
    act_type: int | None,
    output_dtype: int | torch.dtype | None,
    tuning_config: list[int] | None = None,
) -> list[torch.Tensor]:
    """Return x_i @ weight_i + bias_i of each group, as one tensor with ``split_item`` 2 or 3, else one per group.

    ``group_type`` 0 splits the rows of a single x by ``group_list``, 2 splits the summed dimension, -1 takes one x per
    weight.
    """
    split, groups = split_item or 0, group_type
    if groups is None:
        limits.GROUP_TYPE.require(not isinstance(group_list, torch.Tensor), "group_type is None")
        groups = -1 if group_list is None else _ALONG_ROWS
    limits.GROUP_TYPE.require(groups in (-1, _ALONG_ROWS, _ALONG_SUM), f"group_type is {groups}")
    limits.SPLIT_ITEM.require(split in (0, 1, 2, 3), f"split_item is {split}")
    if any(one.dtype == torch.int32 for one in weight):
        raise OperatorMissing("npu::npu_grouped_matmul: 4-bit weights — the emulation does not support them")
    one_result = split >= 2
    per_group = list(weight[0].unbind()) if len(weight) == 1 and weight[0].dim() == 3 else weight
    limits.INNER.require(
        all(matrix.shape[-1] < limits.INNER_LIMIT for matrix in (*x, *per_group)),
        f"x are {_shapes(x)}, weights are {_shapes(weight)}",
    )
    to = dtype_of(output_dtype) if output_dtype is not None else x[0].dtype
    if x[0].is_meta and one_result:  # The lengths of groups are not needed.
        if groups == _ALONG_SUM and len(x) == 1:
            return [x[0].new_empty((len(group_list or ()), x[0].shape[0], weight[0].shape[-1]), dtype=to)]
        return [x[0].new_empty((sum(one.shape[0] for one in x), per_group[0].shape[-1]), dtype=to)]
    count = max(len(per_group), len(x))
    count = len(group_list) if groups == _ALONG_SUM and group_list is not None else count
    lengths = _lengths(group_list, group_list_type or 0, x[0].shape[-1 if groups == _ALONG_SUM else 0], count)
    if groups == _ALONG_SUM and len(x) == 1:
        columns = x[0].split(lengths, -1)
        rows = weight[0].split(lengths, -2) if len(weight) == 1 else weight
        return [torch.stack([wide(a) @ wide(b) for a, b in zip(columns, rows, strict=True)]).to(to)]
    parts = list(x) if len(x) > 1 or len(per_group) == 1 else list(x[0].split(lengths))
    scales_of_rows = (
        per_token_scale[0].split(lengths) if per_token_scale and len(per_token_scale) == 1 else per_token_scale
    )
    _require_pairs(parts, per_group)
    results = []
    for index, (part, matrix) in enumerate(zip(parts, per_group, strict=True)):
        right = wide(matrix)
        if antiquant_scale:
            offset = _of(antiquant_offset, index)
            right = (right if offset is None else right + wide(offset)) * wide(_of(antiquant_scale, index))
        product = wide(part).to(right.dtype) @ right
        added, factor = _of(bias, index), _of(scale, index)
        if added is not None and (factor is None or added.dtype == torch.int32):
            product, added = product + wide(added), None
        if factor is not None:
            product = product * as_float(factor)
        if scales_of_rows:
            product = product * wide(scales_of_rows[index]).reshape(-1, 1)
        product = product if added is None else product + wide(added)
        results.append(_narrow(_ACTIVATIONS[act_type](product) if act_type in _ACTIVATIONS else product, to))
    return [torch.cat(results)] if one_result else results


@kernel("npu_grouped_matmul_add", "npu_grouped_matmul_add_")
def grouped_matmul_add(
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    transpose_x: bool,
    transpose_weight: bool,
    group_type: int,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """Add x^T @ weight of each group of rows to the input, float32 [G * K, N]; used for the gradients of weights."""
    found = f"transpose_x is {transpose_x}, transpose_weight is {transpose_weight}, group_type is {group_type}"
    limits.ADD.require(transpose_x and not transpose_weight and group_type == _ALONG_SUM, found)
    if self.is_meta:
        return self
    lengths = _lengths(group_list, group_list_type or 0, x.shape[0], group_list.numel())
    pairs = zip(x.split(lengths), weight.split(lengths), strict=True)
    product = torch.stack([wide(a).t() @ wide(b) for a, b in pairs])
    return self.add_(product.reshape(self.shape))


@kernel("npu_grouped_matmul_swiglu_quant")
def grouped_matmul_swiglu_quant(
    x: torch.Tensor, weight: torch.Tensor, group_list: torch.Tensor, weight_scale: torch.Tensor, x_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the SwiGLU of the dequantised products in int8, its scale per row [M], and an empty tensor."""
    if weight.dim() != 3:
        raise OperatorMissing(
            f"npu::npu_grouped_matmul_swiglu_quant: weight is {shape(weight)}, expected [E, K, N] — the blocks of "
            "FRACTAL_NZ are not emulated"
        )
    if x.is_meta:
        half = weight.shape[-1] // 2
        return x.new_empty((x.shape[0], half)), x_scale.new_empty(x.shape[0]), x_scale.new_empty(0)
    lengths = _lengths(group_list, 0, x.shape[0], weight.shape[0])
    parts = zip(x.split(lengths), weight, weight_scale, x_scale.split(lengths), strict=True)
    wides = [(wide(a) @ wide(b)) * wide(s) * wide(t).reshape(-1, 1) for a, b, s, t in parts]
    first, second = torch.cat(wides).chunk(2, -1)
    result = functional.silu(first) * second
    scale = result.abs().amax(-1) / 127
    return (result / scale.unsqueeze(-1)).round().clamp(-128, 127).to(torch.int8), scale.float(), scale.float()[:0]


def _lengths(group_list: torch.Tensor | Sequence[int] | None, kind: int, total: int, count: int) -> list[int]:
    """Return each group's length from cumulative sums (kind 0), lengths (1), or pairs of group and length (2)."""
    if group_list is None:
        return [total] if count == 1 else []
    given = values.of(group_list) if isinstance(group_list, torch.Tensor) else torch.tensor(group_list)
    if given is None:
        raise OperatorMissing("npu::npu_grouped_matmul: group_list has no values at full size")
    if kind == 0:
        given = torch.diff(given, prepend=given.new_zeros(1))
    elif kind == 2:
        filled = given.new_zeros(count)
        filled[given[:, 0]] = given[:, 1]
        given = filled
    lengths = [int(one) for one in given]
    fits = min(lengths) >= 0 and sum(lengths) == total and len(lengths) == count
    limits.GROUP_LIST.require(
        fits, f"group_list has lengths {lengths} (group_list_type={kind}) of {total} for {count} groups"
    )
    return lengths


def _require_pairs(parts: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor]) -> None:
    found = f"x are {_shapes(parts)}, weights are {_shapes(matrices)}"
    fits = len(parts) == len(matrices)
    fits = fits and all(a.shape[-1] == b.shape[-2] for a, b in zip(parts, matrices, strict=False))
    limits.PAIRS.require(fits, found)
    dtypes = {name_of(one) for one in parts}
    limits.DTYPE.require(dtypes <= {"float16", "bfloat16", "float32", "int8"}, f"x are {', '.join(sorted(dtypes))}")


def _shapes(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(map(shape, tensors))


def _of(tensors: list[torch.Tensor] | None, index: int) -> torch.Tensor | None:
    """Return the part of one group: its row of a shared tensor, or else its separate tensor."""
    if not tensors:
        return None
    return tensors[0][index] if len(tensors) == 1 and tensors[0].dim() > 1 else tensors[min(index, len(tensors) - 1)]


def _narrow(result: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    return result.to(to) if to.is_floating_point else result.round().clamp(-128, 127).to(to)
