"""L2 norms in Triton: one launch reads all tensors with wide loads, a second adds the sums of their chunks in order.

torch's foreach operator reads 16-bit tensors with loads of 8 bytes, at half of the bandwidth of an H200.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels import tensor_lists
from ascend_adapt.kernels.operators.l2_norms import L2NormsCall
from ascend_adapt.kernels.tensor_lists import DTYPES, load
from ascend_adapt.kernels.triton_launch import Launcher

_TILE, _TILES, _WARPS = 8192, 8, 8
_CHUNK = _TILE * _TILES
"""Number of elements per program."""
_SUMS = 1024


def supports(call: L2NormsCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
    if call.tensors[0].dtype not in DTYPES:
        return f"it takes fp32, fp16 and bf16, not {str(call.tensors[0].dtype).removeprefix('torch.')}"
    return "" if all(each.is_contiguous() for each in call.tensors) else "it takes contiguous tensors"


def run(call: L2NormsCall) -> torch.Tensor:
    """Return the norms."""
    device = call.tensors[0].device
    table = tensor_lists.tables(call.tensors, _CHUNK, device)
    addresses = table.addresses_of([call.tensors], device)
    sums = torch.empty(len(table.chunks), dtype=torch.float32, device=device)
    result = torch.empty(len(call.tensors), dtype=torch.float32, device=device)
    if len(sums):
        _launch_chunks(
            len(sums),
            addresses.numbers, table.sizes, table.chunks, sums, DTYPES[call.tensors[0].dtype], addresses.aligned,
            table.even, _TILE, _TILES, warps=_WARPS,
        )  # fmt: skip
    _launch_totals(len(result), sums, table.programs, result, _SUMS, warps=_WARPS)
    return result


@triton.jit
def _chunk_kernel(
    addresses, sizes, chunks, sums, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the sum of squares of one chunk of one tensor."""
    program = tl.program_id(0).to(tl.int64)
    which = tl.load(chunks + 2 * program).to(tl.int64)
    start = tl.load(chunks + 2 * program + 1).to(tl.int64) * (TILE * TILES)
    size = tl.load(sizes + which)
    if EVEN:
        size = tl.multiple_of(size, 16)
    address = tl.load(addresses + which)
    squares = tl.zeros((TILE,), tl.float32)
    for first in tl.range(start, tl.minimum(size, start + TILE * TILES), TILE):
        offsets = first + tl.arange(0, TILE)
        values = load(address, offsets, offsets < size, DTYPE, ALIGNED)
        squares += values * values
    tl.store(sums + program, tl.sum(squares, 0))


@triton.jit
def _total_kernel(sums, programs, result, TILE: tl.constexpr):
    """Write the square root of the sum over one tensor's chunks."""
    which = tl.program_id(0)
    end = tl.load(programs + 2 * which + 1)
    total = tl.zeros((TILE,), tl.float32)
    for first in tl.range(tl.load(programs + 2 * which), end, TILE):
        place = first + tl.arange(0, TILE)
        total += tl.load(sums + place, mask=place < end, other=0.0)
    tl.store(result + which, tl.sqrt(tl.sum(total, 0)))


_launch_chunks, _launch_totals = Launcher(_chunk_kernel), Launcher(_total_kernel)
