"""Decode step: one token per row, with fixed shapes, recorded once as a graph and then replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascend_adapt.native import device as devices
from ascend_adapt.native.model.kv_cache import FixedShapeCache, KeyValueCache

_CAPACITY_STEP = 128
"""Capacities are multiples of this number, so that batches of similar length share a graph."""


LogitsOf = Callable[[torch.Tensor, KeyValueCache], torch.Tensor]
"""Function that returns this rank's logits [rows, vocabulary] after tokens [rows, S] that continue a cache."""


class DecodeStep:
    """A step for ``rows`` rows of ``capacity`` tokens or more; the first runs eagerly, which prepares the graph."""

    def __init__(self, logits_of: LogitsOf, rows: int, capacity: int, max_positions: int, device: torch.device) -> None:
        self.logits_of, self.rows, self.capacity = logits_of, rows, _rounded(capacity)
        self._cache = FixedShapeCache(self.capacity, rows, max_positions - 1, device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._replay: Callable[[], None] | None = None
        self._has_run = False

    def serves(self, rows: int, capacity: int) -> bool:
        """Return whether this step fits a batch of ``rows`` rows that needs ``capacity`` tokens."""
        return (rows, _rounded(capacity)) == (self.rows, self.capacity)

    def start(self, cache: KeyValueCache) -> None:
        """Start decoding after the prompts in ``cache``."""
        self._cache.fill(cache)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return this rank's logits [rows, vocabulary] after ``tokens`` [rows, 1]; the next call overwrites them."""
        self._tokens.copy_(tokens)
        if self._replay is None and self._has_run:
            self._replay = devices.recorded(self._launch)
        if self._replay is None:
            self._launch()
            self._has_run = True
        else:
            self._replay()
        return self._logits

    def _launch(self) -> None:
        self._logits = self.logits_of(self._tokens, self._cache)


def _rounded(capacity: int) -> int:
    return -(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP
