"""Input layouts, which determine the positions of a call's sequences in its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import fusion_attention as limits

_RANKS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}


@dataclass(frozen=True)
class AxisPlace:
    """Position of one sequence of a batch, or of one document of packed tokens."""

    index: int
    start: int = 0
    end: int = 0
    """Token range [start, end) in packed tensors."""


@dataclass(frozen=True)
class TensorLayout:
    """An input layout, identified by its name in capitals; torch_npu accepts any case."""

    name: str

    @property
    def packed(self) -> bool:
        """Whether the tokens of several documents are concatenated (TND)."""
        return self.name == "TND"

    def sizes(self, tensor: torch.Tensor, heads: int) -> tuple[int, int, int]:
        """Return the batch size (1 if packed), the number of heads, and the head size."""
        size = tensor.shape
        if self.name in ("BSH", "SBH"):
            return size[self.name.index("B")], heads, size[2] // heads
        if self.packed:
            return 1, size[1], size[2]
        return size[0], size[self.name.index("N")], size[3]

    def length(self, tensor: torch.Tensor) -> int:
        """Return the sequence length S, or the number of tokens T if packed."""
        return int(tensor.shape[self.name.index("T" if self.packed else "S")])

    def sequence(self, tensor: torch.Tensor, place: AxisPlace, heads: int) -> torch.Tensor:
        """Return one sequence as a view [N, S, D] of a tensor in this layout; both share memory."""
        if self.packed:
            return tensor[place.start : place.end].transpose(0, 1)
        if self.name == "BNSD":
            return tensor[place.index]
        rows = tensor[:, place.index] if self.name == "SBH" else tensor[place.index]
        return (rows if self.name == "BSND" else rows.unflatten(1, (heads, -1))).transpose(0, 1)

    def like(self, query: torch.Tensor, value: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
        """Return an empty tensor for the result, with the query's sizes and the value's head size."""
        head_size = self.sizes(value, kv_heads)[2]
        last = heads * head_size if self.name in ("BSH", "SBH") else head_size
        return query.new_zeros((*query.shape[:-1], last))


def layout_of(name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> TensorLayout:
    """Return the layout by its name.

    Raises:
        LimitNotKept: no layout has this name, or a tensor has the wrong number of dimensions.
    """
    layout = TensorLayout(name.upper())
    rank = _RANKS.get(layout.name)
    found = f"input_layout is {name!r}, query is {shape(query)}, key is {shape(key)}, value is {shape(value)}"
    limits.LAYOUT.require(rank is not None and query.dim() == key.dim() == value.dim() == rank, found)
    return layout


def packed_places(ends: Sequence[int] | torch.Tensor | None) -> list[AxisPlace]:
    """Return the positions of documents from cumulative ends, ``[2, 4, 9]``; trailing zeros are omitted sequences."""
    values = [int(end) for end in ends] if ends is not None else []
    while values and values[-1] == 0 and any(values):
        values.pop()
    starts = [0, *values][: len(values)]
    return [AxisPlace(index, start, end) for index, (start, end) in enumerate(zip(starts, values, strict=True))]
