"""Vocabulary padding, which depends on the tensor-parallel size."""

from __future__ import annotations

import torch

from ascend_adapt.checkpoint.canonical import HEAD, WORDS


def is_vocabulary(name: str) -> bool:
    """Return whether each row of a parameter belongs to a token id."""
    return name in (WORDS, HEAD)


def with_rows(table: torch.Tensor, rows: int, ids: int) -> torch.Tensor:
    """Truncate or pad an embedding table of ``ids`` token ids to ``rows`` rows.

    An added row is the mean over all ids, so that a padding id is as probable as an average id.
    """
    more = rows - table.shape[0]
    if more <= 0:
        return table[:rows]
    mean = table[:ids].float().mean(0, keepdim=True).to(table.dtype)
    return torch.cat([table, mean.expand(more, -1)])
