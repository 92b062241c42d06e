"""The digests of one step's tensors, by row.

Small tensors of one shape are copied and digested together. A digest takes about twenty kernel launches for a tensor of
any size, and many tensors of a step have the same shape.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from ascend_adapt.alignment.digest import digest, digest_all, is_digestible, joined
from ascend_adapt.alignment.shards import Shard
from ascend_adapt.alignment.values import WIDTH

_SMALL = 1 << 18
"""Maximum number of elements of a copied tensor. On larger tensors, kernels run longer than their launch takes."""
_MOST_COPIED = 1 << 24
"""Maximum number of elements in all copies together."""


class DigestTable:
    """Digests tensors into rows, numbered in the order of the calls of ``add``."""

    def __init__(self) -> None:
        self._count = 0
        self._digests: list[tuple[list[int], torch.Tensor]] = []
        self._copies: dict[tuple[Any, ...], list[tuple[int, torch.Tensor]]] = defaultdict(list)
        self._copied = 0

    def add(self, tensor: torch.Tensor, shard: Shard | None) -> int:
        """Digest the current values of a tensor, and return the row of the digest."""
        row, self._count = self._count, self._count + 1
        if not is_digestible(tensor):
            return row
        axis = shard.axis if shard is not None and shard.axis is not None else 0
        pieces = shard.pieces(tensor) if shard is not None else [(tensor, 0)]
        if tensor.numel() > _SMALL or len(pieces) > 1:
            each = [digest(piece, axis, offset) for piece, offset in pieces]
            self._digests.append(([row], functools.reduce(joined, each)[None]))
            return row
        place = axis, pieces[0][1]
        group = (tensor.device, _stream(tensor.device), tensor.dtype, tensor.shape, place)
        self._copies[group].append((row, tensor.detach().clone()))
        self._copied += tensor.numel()
        if self._copied > _MOST_COPIED:
            self._digest_copies([each for each in self._copies if each[:2] == group[:2]])
        return row

    def array(self) -> np.ndarray:
        """Return all digests, float32 [rows, WIDTH]; rows without a digest are NaN. Transfers once per device."""
        for device in {device for device, *_ in self._copies if device.type != "cpu"}:
            getattr(torch, device.type).synchronize(device)  # the copies may have been made on other streams
        self._digest_copies(list(self._copies))
        table = torch.full((self._count, WIDTH), float("nan"))
        for device in {digests.device for _, digests in self._digests}:
            mine = [(rows, digests) for rows, digests in self._digests if digests.device == device]
            table[[row for rows, _ in mine for row in rows]] = torch.cat([digests for _, digests in mine]).cpu()
        array: np.ndarray = table.numpy()
        return array

    def _digest_copies(self, groups: list[tuple[Any, ...]]) -> None:
        for group in groups:
            rows, copies = zip(*self._copies.pop(group), strict=True)
            self._copied -= sum(copy.numel() for copy in copies)
            self._digests.append((list(rows), digest_all(torch.stack(copies), *group[-1])))


def _stream(device: torch.device) -> Any:
    """Return the current stream of a device, None for a CPU. A copy is digested on the stream that made it."""
    return None if device.type == "cpu" else getattr(torch, device.type).current_stream(device)
