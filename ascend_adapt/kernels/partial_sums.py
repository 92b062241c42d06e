"""Sums over the programs of a Triton kernel, such as of the gradients of weights and biases.

Each program writes the sums of its rows. One launch adds them in a fixed order, so the result is deterministic, and
rounds it to the dtype of the gradient. torch needs one launch for the sums and one for each rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.triton_launch import Launcher

_WIDTH, _MOST_ROWS, _WARPS = 32, 256, 8


def sum_over_programs(sums: torch.Tensor, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """Return the sums over the programs, [columns] for each kind of gradient.

    Args:
        sums: fp32 [kinds, programs, columns].
        dtypes: the dtype of the result for each kind.
    """
    if len(set(dtypes)) > 1:
        return [sum_over_programs(one[None], [dtype])[0] for one, dtype in zip(sums, dtypes, strict=True)]
    kinds, parts, columns = sums.shape
    result = torch.empty(kinds, columns, dtype=dtypes[0], device=sums.device)
    rows = min(_MOST_ROWS, max(16, 1 << (parts - 1).bit_length()))
    _launch(kinds * -(-columns // _WIDTH), sums, result, parts, columns, rows, _WIDTH, warps=_WARPS)
    return list(result)


@triton.jit
def _sum_kernel(sums, result, parts, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    strips = tl.cdiv(columns, WIDTH)
    kind, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    column = strip * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, parts, ROWS):
        part = first + tl.arange(0, ROWS)[:, None]
        place = (kind * parts + part).to(tl.int64) * columns + column[None, :]
        total += tl.load(sums + place, mask=inside[None, :] & (part < parts), other=0.0)
    tl.store(result + kind * columns + column, tl.sum(total, 0).to(result.dtype.element_ty), mask=inside)


_launch = Launcher(_sum_kernel)
