"""Rows of the vocabulary tables, which each tensor-parallel size pads differently."""

from __future__ import annotations

import torch

from ascend_adapt.checkpoint.canonical import HEAD, WORDS


def is_vocabulary(name: str) -> bool:
    """Return whether a parameter's rows are ids."""
    return name in (WORDS, HEAD)


def with_rows(table: torch.Tensor, rows: int, ids: int) -> torch.Tensor:
    """Return a table of ``rows`` rows for ``ids`` ids: without the last ones, or with rows added.

    Rows that are added are the mean of those of all ids: an id that never was trained is as probable as the average.
    """
    more = rows - table.shape[0]
    if more <= 0:
        return table[:rows]
    mean = table[:ids].float().mean(0, keepdim=True).to(table.dtype)
    return torch.cat([table, mean.expand(more, -1)])
