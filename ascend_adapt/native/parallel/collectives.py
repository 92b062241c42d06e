"""Collectives of torch.distributed, by their names in the installed release."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather(whole: torch.Tensor, mine: torch.Tensor, group: Any, *, async_op: bool = False) -> Any:
    """Fill ``whole`` [ranks * n, ...] with every rank's ``mine`` [n, ...], in the order of the ranks.

    Returns the work handle if ``async_op``.
    """
    return _named("all_gather_single", "all_gather_into_tensor")(whole, mine, group=group, async_op=async_op)


def reduce_scatter(
    mine: torch.Tensor, whole: torch.Tensor, group: Any, *, op: Any = dist.ReduceOp.SUM, async_op: bool = False
) -> Any:
    """Fill ``mine`` [n, ...] with this rank's part of the sum of every rank's ``whole`` [ranks * n, ...].

    Returns the work handle if ``async_op``.
    """
    function = _named("reduce_scatter_single", "reduce_scatter_tensor")
    return function(mine, whole, op=op, group=group, async_op=async_op)


def _named(name: str, before: str) -> Any:
    """Return a collective by its torch 2.13 name if it exists, else by the older name, which 2.13 deprecates.

    The function is looked up at each call, because torch_npu and profilers replace it after this module is imported.
    """
    return getattr(dist, name, None) or getattr(dist, before)
