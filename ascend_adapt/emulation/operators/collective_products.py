"""Matrix products that overlap a collective of tensor parallelism.

Composed of the collective, which the process group runs, and of the product. Sources: op-plugin@517f2e7,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_all_gather_base_mm.md and torch_npu-npu_mm_reduce_scatter_base.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import collective_products as limits

_AI_CPU, _AIV = "ai_cpu", "aiv"


@kernel("npu_all_gather_base_mm", is_composed=True, needs_a2=True)
def all_gather_product(
    self: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    bias: torch.Tensor | None,
    gather_index: int,
    gather_output: bool,
    comm_turn: int,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product of all ranks' rows with ``x2``, and these rows, or an empty tensor."""
    limits.DEFAULTS.require(gather_index == 0, f"gather_index is {gather_index}")
    _require(self, x2, world_size, bias, x2_scale, comm_turn, comm_mode)
    limits.GATHERED.require(gather_output or comm_mode != _AIV, f"gather_output is {gather_output}")
    group = _group(hcom, world_size)
    rows = _gathered(self, group)
    scale = None if x1_scale is None else _gathered(x1_scale, group)
    return _product(rows, x2, scale, x2_scale, output_dtype), rows if gather_output else self.new_empty(0)


@kernel("npu_mm_reduce_scatter_base", is_composed=True, needs_a2=True)
def product_reduce_scatter(
    self: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    reduce_op: str,
    bias: torch.Tensor | None,
    comm_turn: int,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> torch.Tensor:
    """Return this rank's rows of the sum of all ranks' products."""
    limits.DEFAULTS.require(reduce_op == "sum", f"reduce_op is {reduce_op}")
    _require(self, x2, world_size, bias, x2_scale, comm_turn, comm_mode)
    limits.ROWS.require(len(self) % world_size == 0, f"self is {shape(self)}, world_size is {world_size}")
    group = _group(hcom, world_size)
    product = _product(self, x2, x1_scale, x2_scale, output_dtype)
    own = product.new_empty(len(self) // world_size, x2.shape[1])
    distributed.reduce_scatter_tensor(own, product, group=group)
    return own


def _require(
    self: torch.Tensor,
    x2: torch.Tensor,
    world_size: int,
    bias: torch.Tensor | None,
    x2_scale: torch.Tensor | None,
    comm_turn: int,
    comm_mode: str | None,
) -> None:
    found = f"self is {dtype(self)} {shape(self)}, x2 is {dtype(x2)} {shape(x2)}"
    limits.WORLD.require(world_size in limits.RANKS, f"world_size is {world_size}")
    limits.SHAPES.require(self.dim() == x2.dim() == 2 and self.shape[1] == x2.shape[0], found)
    limits.INNER.require(self.shape[1] in limits.INNER_SIZES, found)
    is_quantised = x2_scale is not None
    dtypes = (torch.int8,) if is_quantised else (torch.float16, torch.bfloat16)
    kept = self.dtype == x2.dtype and self.dtype in dtypes and (comm_mode == _AIV or not is_quantised)
    limits.DTYPE.require(kept, f"{found}, comm_mode is {comm_mode}, x2_scale is {'' if is_quantised else 'not '}given")
    limits.TRANSPOSED.require(self.is_contiguous(), f"strides of self are {list(self.stride())}")
    limits.BIAS.require(bias is None, "bias is given")
    is_default = comm_turn == 0 and comm_mode in (None, _AI_CPU, _AIV)
    limits.DEFAULTS.require(is_default, f"comm_turn is {comm_turn}, comm_mode is {comm_mode}")


def _group(hcom: str, world_size: int) -> Any:
    """Return the process group whose communicator on the current device has this name."""
    groups = distributed.distributed_c10d._world.pg_map if distributed.is_initialized() else {}
    device = torch.device("npu", torch.npu.current_device())
    for group in groups:
        has_npu = any(one.type == device.type for one in group._device_types)
        if has_npu and group._get_backend(device).get_hccl_comm_name(device.index, init_comm=False) == hcom:
            limits.GROUP.require(group.size() == world_size, f"world_size is {world_size}, {hcom} has {group.size()}")
            return group
    limits.GROUP.require(False, f"hcom is {hcom!r}")
    return None


def _gathered(own: torch.Tensor, group: Any) -> torch.Tensor:
    rows = own.new_empty(group.size() * len(own), own.shape[1])
    distributed.all_gather_into_tensor(rows, own, group=group)
    return rows


def _product(
    rows: torch.Tensor,
    x2: torch.Tensor,
    x1_scale: torch.Tensor | None,
    x2_scale: torch.Tensor | None,
    output_dtype: torch.dtype | None,
) -> torch.Tensor:
    if x2_scale is None:
        return rows @ x2
    to = torch.float16 if x2_scale.dtype == torch.int64 else output_dtype or torch.bfloat16
    of_rows = None if x1_scale is None else x1_scale.flatten()
    given = {"pertoken_scale": of_rows, "output_dtype": to}
    return torch.ops.npu.npu_quant_matmul(rows, x2, x2_scale.flatten(), **given)
