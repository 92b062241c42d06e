"""Position bias of the scores (pse), given in full, as its last 1024 rows, or as one slope per head (ALiBi)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ascend_adapt.emulation.full_size import values
from ascend_adapt.emulation.operators.fusion_attention.arguments import Arguments
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits import fusion_attention as limits

FROM_SLOPES = (2, 3)
"""Values of pse_type for which the operator computes the bias: -slope * distance, or -slope * sqrt(distance)."""
COMPRESSED_ROWS = 1024


@dataclass(frozen=True)
class PositionBias:
    """The pse of one call; ``sizes`` is (B, N, Sq, Skv), where Sq and Skv are total token counts for packed tokens."""

    arguments: Arguments
    sizes: tuple[int, int, int, int]
    packed: bool

    @property
    def before_scaling(self) -> bool:
        """Whether pse is added before scaling: scale * (QK^T + pse)."""
        return self.arguments.pse_type == 1

    @property
    def compressed(self) -> bool:
        """Whether pse holds only the last 1024 rows of a longer bias, which depends on distance."""
        pse = self.arguments.pse
        return pse is not None and pse.dim() == 4 and pse.shape[2] == COMPRESSED_ROWS < self.sizes[2]

    @property
    def full(self) -> bool:
        """Whether pse is given in full; only then does it have a gradient."""
        return self.arguments.pse is not None and self.arguments.pse_type not in FROM_SLOPES and not self.compressed

    def require(self, any_empty: bool) -> None:
        """Check the limits that do not depend on a single sequence.

        Raises:
            LimitNotKept: pse or its type violates a limit.
            OperatorMissing: a form of pse, or its gradient, is not implemented.
        """
        given, pse = self.arguments, self.arguments.pse
        limits.PSE_TYPE.require(given.pse_type in range(4), f"pse_type is {given.pse_type}")
        if pse is None:
            return
        found = f"pse is {dtype(pse)} {shape(pse)}, the scores are {list(self.sizes)}"
        limits.SPLIT_PSE.require(
            given.sparse_mode not in (7, 8) and not any_empty, f"sparse_mode is {given.sparse_mode}"
        )
        batch, heads, rows, columns = self.sizes
        if given.pse_type in FROM_SLOPES:
            fits = pse.dtype == torch.float32 and list(pse.shape) in ([batch, heads], [heads])
            limits.SLOPES.require(fits and rows == columns, found)
        elif self.packed:
            raise OperatorMissing(
                f"npu::npu_fusion_attention: {found}, expected pse types 2 and 3 with TND — "
                "the emulation implements no other pse type for packed tokens"
            )
        elif self.compressed:
            fits = pse.shape[0] in (1, batch) and pse.shape[1] == heads and pse.shape[3] == columns
            limits.COMPRESSED_PSE.require(fits and rows == columns and given.sparse_mode in (0, 2, 3), found)
            seen = columns - COMPRESSED_ROWS
            known = values.of(pse)
            by_distance = known is None or torch.equal(known[:, :, 1:, 1:].tril(seen), known[:, :, :-1, :-1].tril(seen))
            limits.COMPRESSED_PSE.require(by_distance, f"{found}, one of its diagonals has different values")
        else:
            shapes = ([batch, heads, rows, columns], [batch, heads, 1, columns], [1, heads, rows, columns])
            limits.PSE_SHAPE.require(list(pse.shape) in shapes, found)
        if pse.requires_grad and not self.full:
            raise OperatorMissing(
                f"npu::npu_fusion_attention: {found} and requires grad, expected a full one for a gradient — "
                "the emulation does not implement the gradient of slopes or of a compressed pse"
            )

    def of_sequence(self, index: int, rows: int, columns: int) -> torch.Tensor | None:
        """Return the bias of one sequence, which broadcasts to [N, Sq, Skv].

        Source of the bias from slopes: CANN ops-transformer, flash_attention_score pse.h PseSlopeCopyIn.
        """
        pse = self.arguments.pse
        if pse is None:
            return None
        if self.arguments.pse_type in FROM_SLOPES:
            slopes = pse if pse.dim() == 1 else pse[min(index, pse.shape[0] - 1)]
            first_row, first_column = (
                _first(start) for start in (self.arguments.q_start_idx, self.arguments.kv_start_idx)
            )
            distance = _distance(rows, columns, first_column - first_row).abs().double()
            return -wide(slopes)[:, None, None] * (distance.sqrt() if self.arguments.pse_type == 3 else distance)
        own = wide(pse[min(index, pse.shape[0] - 1)])
        if not self.compressed:
            return own
        # The last row contains every distance; positions above the diagonal are masked.
        last = columns - 1 + _distance(rows, columns, 0)
        return own[:, -1].index_select(-1, last.clamp(max=columns - 1).flatten()).view(-1, rows, columns)


def _distance(rows: int, columns: int, shift: int) -> torch.Tensor:
    """Return the distance of key j from query i, [Sq, Skv]."""
    return torch.arange(columns)[None] - torch.arange(rows)[:, None] + shift


def _first(start: list[int] | None) -> int:
    return start[0] if start else 0
