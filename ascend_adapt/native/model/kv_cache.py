"""Key/value cache for generation: the keys and values of the tokens that the model has already seen."""

from __future__ import annotations

import torch
from torch import nn


class KeyValueCache:
    """Cache for a batch of up to ``capacity`` tokens, shorter prompts padded on the left.

    Memory for all ``capacity`` tokens of this rank's heads is allocated at the first token.

    Args:
        capacity: tokens of a row, padding included. padding: int64 [B], number of padding tokens at the start of each
        row. None means no padding: attention then needs no mask and can use the fused causal kernels.
    """

    position_steps = (1, 0)
    """Increments of a row's position and block position for each generated token."""

    def __init__(self, capacity: int, padding: torch.Tensor | None = None) -> None:
        self.capacity, self.padding = capacity, padding
        self.length = 0
        self._stored: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def position_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of the next ``tokens``, int64 [B, S]; padding has position 0."""
        places = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device).expand_as(tokens)
        return places if self.padding is None else (places - self.padding[:, None]).clamp(min=0)

    def block_position_ids(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Return the block positions of the next ``tokens``, int64 [B, S]; None if the rows have no blanks."""
        return None

    def masked_out(self, count: int) -> torch.Tensor | None:
        """Return the mask of the next ``count`` queries, bool [B, count, K], True = masked; None means causal."""
        if self.padding is None:
            return None
        keys = torch.arange(self.length + count, device=self.padding.device)
        later = keys > keys[self.length :, None]
        return later | (keys < self.padding[:, None])[:, None]

    def extend(self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's key and value [B, Nk, S, D] of the next tokens; return those of all tokens so far."""
        if layer not in self._stored:
            shape = (*key.shape[:2], self.capacity, key.shape[3])
            self._stored[layer] = key.new_empty(shape), value.new_empty(shape)
        end = self.length + key.shape[2]
        keys, values = self._stored[layer]
        keys[:, :, self.length : end], values[:, :, self.length : end] = key, value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, count: int) -> None:
        """Count ``count`` tokens as seen, after every layer has stored them."""
        self.length += count

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keep only the given rows of the batch, int64 [rows], such as the unfinished sequences."""
        self._stored = {layer: (key[rows], value[rows]) for layer, (key, value) in self._stored.items()}
        self.padding = None if self.padding is None else self.padding[rows]


class FixedShapeCache(KeyValueCache):
    """Cache for decode steps of one token with fixed shapes, so that a device can replay a step as a graph.

    Attention covers all ``capacity`` columns; columns without a token are masked. Values that change from step to step
    are tensors, which ``fill`` and ``advance`` update in place.

    Args:
        capacity: tokens of a row, padding included. rows: rows of the batch. last_position: last position of the model;
        finished rows stay at it. device: device of the model.
    """

    def __init__(self, capacity: int, rows: int, last_position: int, device: torch.device) -> None:
        super().__init__(capacity, torch.zeros(rows, dtype=torch.int64, device=device))
        self._last_position = last_position
        self._columns = torch.arange(capacity, device=device)
        self._column = torch.zeros(1, dtype=torch.int64, device=device)
        self._position, self._block = (torch.zeros(rows, 1, dtype=torch.int64, device=device) for _ in range(2))
        self._has_blocks = False

    def fill(self, cache: KeyValueCache) -> None:
        """Copy the prompts' keys, values and positions from ``cache``."""
        next_token = torch.zeros_like(self._position)
        block = cache.block_position_ids(next_token)
        self._has_blocks, self.position_steps = block is not None, cache.position_steps
        self._column.fill_(cache.length)
        self._position.copy_(cache.position_ids(next_token))
        self._block.copy_(next_token if block is None else block)
        assert self.padding is not None
        self.padding.copy_(torch.zeros_like(self.padding) if cache.padding is None else cache.padding)
        for layer, filled in cache._stored.items():
            if layer not in self._stored:
                empty = [one.new_zeros(*one.shape[:2], self.capacity, one.shape[3]) for one in filled]
                self._stored[layer] = empty[0], empty[1]
            for mine, theirs in zip(self._stored[layer], filled, strict=True):
                mine[:, :, : cache.length] = theirs[:, :, : cache.length]

    def position_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of the next token of each row, int64 [B, 1]."""
        return self._position

    def block_position_ids(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Return the block positions of the next tokens, int64 [B, 1]; None if the rows have no blanks."""
        return self._block if self._has_blocks else None

    def masked_out(self, count: int) -> torch.Tensor:
        """Return the mask of the next token, bool [B, 1, capacity], True = masked."""
        assert self.padding is not None
        return ((self._columns > self._column) | (self._columns < self.padding[:, None]))[:, None]

    def extend(self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's key and value [B, Nk, 1, D] of the next tokens; return the keys and values of all columns."""
        keys, values = self._stored[layer]
        return keys.index_copy_(2, self._column, key), values.index_copy_(2, self._column, value)

    def advance(self, count: int) -> None:
        """Count one token as seen, after every layer has stored it."""
        self._column += 1
        step, block_step = self.position_steps
        self._position.add_(step).clamp_(max=self._last_position)
        self._block.add_(block_step).clamp_(max=self._last_position)
