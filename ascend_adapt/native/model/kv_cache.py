"""Key/value cache of generation: the keys and values of the tokens that the model has already seen."""

from __future__ import annotations

import torch
from torch import nn


class KeyValueCache:
    """Cache for a batch of up to ``capacity`` tokens, shorter prompts padded on the left.

    Memory is allocated when the first token comes, for all ``capacity`` tokens, in this rank's heads.

    Args:
        capacity: tokens of a row, padding included.
        padding: int64 [B], how many padding tokens each row begins with; None: none does, so that attention needs no
            mask and the fused causal kernels serve it.
    """

    def __init__(self, capacity: int, padding: torch.Tensor | None = None) -> None:
        self.capacity, self.padding = capacity, padding
        self.length = 0
        self._stored: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def position_ids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the positions of the next ``tokens``, int64 [B, S]; padding has position 0."""
        places = torch.arange(self.length, self.length + tokens.shape[1], device=tokens.device).expand_as(tokens)
        return places if self.padding is None else (places - self.padding[:, None]).clamp(min=0)

    def block_position_ids(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """Return the positions of the next ``tokens`` inside a blank, int64 [B, S]; None: they are in none."""
        return None

    def masked_out(self, count: int) -> torch.Tensor | None:
        """Return the mask of the next ``count`` queries, bool [B, count, K], True = masked; None: causal."""
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
        """Keep only these rows of the batch, int64 [rows], such as those not finished."""
        self._stored = {layer: (key[rows], value[rows]) for layer, (key, value) in self._stored.items()}
        self.padding = None if self.padding is None else self.padding[rows]
