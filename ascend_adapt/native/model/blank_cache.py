"""Key/value cache of GLM: every token attends to the prompt; pieces that fill its blanks are generated in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_adapt.native.model.kv_cache import KeyValueCache


@dataclass(frozen=True)
class BlankRow:
    """A row up to the start of the next piece to generate; ``prefix`` is the length of its prompt."""

    tokens: Sequence[int]
    position_ids: Sequence[int]
    block_position_ids: Sequence[int]
    prefix: int


class BlankCache(KeyValueCache):
    """Cache for left-padded rows, each of which ends with the [sop] of the piece to generate."""

    position_steps = (0, 1)

    def __init__(self, capacity: int, padding: torch.Tensor | None, rows: Sequence[BlankRow], device: torch.device):
        super().__init__(capacity, padding)
        width = max(len(row.tokens) for row in rows)

        def together(values: list[Sequence[int]]) -> torch.Tensor:
            return torch.tensor([[0] * (width - len(one)) + list(one) for one in values], device=device)

        self._positions = together([row.position_ids for row in rows])
        self._blocks = together([row.block_position_ids for row in rows])
        self._prefix_end = torch.tensor([width - len(row.tokens) + row.prefix for row in rows], device=device)

    def position_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of the next ``tokens``; generated tokens have the position of their mask."""
        return self._positions[:, self._columns(tokens)]

    def block_position_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the block positions of the next ``tokens``, counted from 1 at [sop]; 0 in the prompt."""
        generated = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)
        generated = (generated - self._blocks.shape[1] + 1).clamp(min=0)
        return self._blocks[:, self._columns(tokens)] + generated

    def masked_out(self, count: int) -> torch.Tensor | None:
        """Return the mask of the next ``count`` queries: the prompt is visible to all tokens, a piece is causal."""
        if count == 1:
            return super().masked_out(count)
        keys = torch.arange(self.length + count, device=self._prefix_end.device)
        masked = (keys > keys[self.length :, None]) & (keys >= self._prefix_end[:, None, None])
        return masked if self.padding is None else masked | (keys < self.padding[:, None, None])

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keep only these rows of the batch, int64 [rows]."""
        super().keep_rows(rows)
        self._positions, self._blocks = self._positions[rows], self._blocks[rows]
        self._prefix_end = self._prefix_end[rows]

    def _columns(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the table columns of the next tokens; all generated tokens share the last column."""
        columns = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device)
        return columns.clamp(max=self._positions.shape[1] - 1)
