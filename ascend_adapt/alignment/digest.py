"""The digest of a tensor: a few numbers from which the distance between two tensors can be estimated.

The tensor is taken as a matrix of rows and columns. Its elements are multiplied by signs of +1 and -1, which depend on
the row and the column alone, and are summed into 8 x 8 buckets, by row and column modulo 8. This is a count sketch
(Charikar, Chen and Farach-Colton, 2002): it is linear, and the squared distance of two sketches is an unbiased estimate
of the squared distance of the tensors. A permuted or transposed tensor has a different sketch, and sketches of the
shards of a tensor add up to that of the tensor. The digest is computed on the tensor's device without synchronising
with the host. It uses no matrix product, whose precision would depend on the settings of TF32 and HF32.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ascend_adapt.alignment.values import BUCKETS, WIDTH

_LARGE = 1e18
"""Squares of larger values overflow in fp32. They, and the largest value of a dtype, count as fill values."""
_BLOCK, _BLOCK_ON_CPU = 1 << 24, 1 << 18
"""Number of elements that are converted to fp32 at a time. On a CPU, they fit into the cache."""
_FLAT, _ROW = 1 << 16, 1024
_signs: dict[tuple[int, torch.device], torch.Tensor] = {}


def digest(tensor: torch.Tensor, axis: int = 0, offset: int = 0) -> torch.Tensor:
    """Return the digest of a tensor, float32 [WIDTH], on its device.

    Args:
        tensor: dense, of any dtype and shape.
        axis: the first or last axis, where ``tensor`` is a shard.
        offset: index of the shard's first element along ``axis`` in the full tensor.
    """
    return digest_all(tensor.unsqueeze(0), axis, offset)[0]


def digest_all(tensors: torch.Tensor, axis: int = 0, offset: int = 0) -> torch.Tensor:
    """Return the digests of tensors that are stacked along a new first axis, float32 [number, WIDTH].

    ``axis`` and ``offset`` apply to each tensor, as in ``digest``.
    """
    values = tensors.detach()  # keeps the digest out of the autograd graph
    if values.is_complex():
        values = torch.view_as_real(values)
    number, *shape = values.shape
    if values.numel() == 0:
        return torch.zeros(number, WIDTH, device=values.device)
    is_last = len(shape) > 1 and axis in (-1, len(shape) - 1)
    columns_from = offset if is_last else 0
    rows_from = 0 if is_last else offset * math.prod(shape[1:-1])
    total: torch.Tensor | None = None
    for block, first in _blocks(values):
        part = _of_block(block, rows_from + first, columns_from, values.dtype)
        total = part if total is None else _joined(total, part)
    assert total is not None
    return torch.cat([total[:, :1].sqrt(), total[:, 1:]], dim=1)


def joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the digest of a tensor, computed from the digests of its two parts."""
    squares = torch.cat([one[:1].square(), one[1:]]), torch.cat([other[:1].square(), other[1:]])
    both = _joined(squares[0][None], squares[1][None])[0]
    return torch.cat([both[:1].sqrt(), both[1:]])


def is_digestible(tensor: Any) -> bool:
    """Return whether a tensor can be digested: it is dense, not fake, not on meta, and not in a functorch transform."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and type(tensor).__name__ != "FakeTensor"
    )


def _blocks(values: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """Return matrices [number, rows, columns] of about _BLOCK elements, each with the number of its first row."""
    number = len(values)
    size = values[0].numel()
    if values.dim() > 2:
        matrix = values.reshape(number, -1, values.shape[-1])
    elif size <= _FLAT:
        return [(values.reshape(number, -1, 1), 0)]
    else:  # A long vector, such as ZeRO's flat partition, is viewed as rows: fewer signs have to be computed.
        rows = size // _ROW
        rest = values[:, rows * _ROW :]
        tail = [(rest.reshape(number, 1, -1), rows)] if rest.numel() else []
        return [*_blocks(values[:, : rows * _ROW].reshape(number, rows, _ROW)), *tail]
    block = _BLOCK_ON_CPU if values.device.type == "cpu" else _BLOCK
    step = max(1, block // (number * matrix.shape[2]))
    return [(matrix[:, first : first + step], first) for first in range(0, matrix.shape[1], step)]


def _of_block(block: torch.Tensor, row: int, column: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the digests of float matrices [number, rows, columns], with the squared norm in place of the norm."""
    wide = block.float()
    nans = larges = wide.new_zeros(len(wide))
    norm = _norms(wide)
    limit = min(_LARGE, torch.finfo(dtype).max) if dtype.is_floating_point else _LARGE
    # On a device, reading the norm would synchronise with the host, and the general computation costs little.
    if wide.device.type != "cpu" or not bool((norm < limit).all()):
        nans = wide.isnan().sum((1, 2)).float()
        small = wide.abs() < limit
        larges = wide[0].numel() - small.sum((1, 2)).float() - nans
        wide = torch.where(small, wide, 0.0)
        norm = _norms(wide)
    statistics = norm.square(), wide.sum((1, 2)), wide.amin((1, 2)), wide.amax((1, 2)), nans, larges
    rows = _folded(wide, 0, row)
    sketch = _folded(rows.transpose(1, 2).contiguous(), 1, column)
    return torch.cat([torch.stack(statistics, dim=1), sketch.flatten(1)], dim=1)


def _norms(matrices: torch.Tensor) -> torch.Tensor:
    """Return the norm of each matrix, summed row by row: one fp32 sum over millions of elements loses digits."""
    return torch.linalg.vector_norm(torch.linalg.vector_norm(matrices, dim=2), dim=1)


def _folded(matrices: torch.Tensor, axis: int, offset: int) -> torch.Tensor:
    """Return signed sums of matrix rows, grouped by row number modulo BUCKETS, [number, BUCKETS, columns]."""
    number, count, columns = matrices.shape
    signed = matrices * _signs_of(axis, offset, count, matrices.device)[:, None]
    even = count - count % BUCKETS
    folded = signed[:, :even].reshape(number, -1, BUCKETS, columns).sum(1)
    if even < count:
        folded[:, : count - even] += signed[:, even:]
    return folded.roll(offset % BUCKETS, 1) if offset % BUCKETS else folded


def _signs_of(axis: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the signs of rows (axis 0) or columns (1), from the bits of a hash of their numbers."""
    known = _signs.get((axis, device))
    if known is None or len(known) < first + count:
        length = 1 << max(10, (first + count - 1).bit_length())
        # The finalizer of MurmurHash3, on the low 32 bits: the same on every version and device.
        bits = torch.arange(1, length + 1) + axis * 0x9E3779B9
        bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
        bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        known = (1.0 - 2.0 * ((bits ^ (bits >> 16)) & 1).float()).to(device)
        _signs[axis, device] = known
    return known[first : first + count]


def _joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    joined = one + other
    joined[:, 2], joined[:, 3] = torch.minimum(one[:, 2], other[:, 2]), torch.maximum(one[:, 3], other[:, 3])
    return joined
