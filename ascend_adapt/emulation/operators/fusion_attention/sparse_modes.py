"""Sparse modes: the positions that each mode masks, and checks of masks and bands that the operator does not verify.

Source: op-plugin@517f2e7 docs torch_npu-npu_fusion_attention.md. pre_tockens and next_tockens are counted from the top
left corner in modes 0 to 2, and from the bottom right corner in modes 3, 4, 7 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from ascend_adapt.emulation import location
from ascend_adapt.emulation.full_size import values
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import fusion_attention as limits

NO_LIMIT = 2147483647
COMPRESSED = (2, 3, 4, 7, 8)
PREFIX_ROWS = 1024
# Ring attention steps of torch_npu over earlier keys need no mask, but still pass the caller's next_tockens.
_RING = "torch_npu.distributed.tensor.experimental._context_parallel"


@dataclass(frozen=True)
class SparseMode:
    """The masking arguments of one call."""

    mode: int
    mask: torch.Tensor | None
    pre_tokens: int
    next_tokens: int
    prefix: tuple[int, ...]
    inner_precise: int
    packed: bool
    causal_needs_keys: bool
    """Whether mode 3 rejects more queries than keys, as documented for v2, instead of zeroing the leading rows."""

    def require(self, sequences: int) -> None:
        """Check the limits that do not depend on a single sequence.

        Raises:
            LimitNotKept: the mode or its mask violates a limit.
        """
        modes = (0, 1, 2, 3, 4, 6, 7, 8) if self.packed else range(7)
        found = f"sparse_mode is {self.mode}" + (" with TND" if self.packed else "")
        limits.SPARSE_MODE.require(self.mode in modes, found)
        tokens = f"pre_tockens is {self.pre_tokens}, next_tockens is {self.next_tokens}"
        if self.mode in (0, 4):
            limits.BAND_EMPTY.require(self.pre_tokens + self.next_tokens >= 0, f"{found}, {tokens}")
        if self.mode in (5, 6):
            counted = len(self.prefix) == sequences and sequences in limits.PREFIXES
            limits.PREFIX.require(counted, f"prefix is {list(self.prefix)} for {sequences} sequences")
        if self.mask is None:
            limits.MASK_MISSING.require(self.mode == 0, f"{found}, atten_mask is None")
            return
        limits.MASK_DTYPE.require(self.mask.dtype in (torch.bool, torch.uint8), f"atten_mask is {dtype(self.mask)}")
        wanted = compressed_mask(self.mode)
        if wanted is not None:
            limit = limits.COMPRESSED_PREFIX_MASK if self.mode == 6 else limits.COMPRESSED_MASK
            given = self.mask.reshape(self.mask.shape[-2:]) if self.mask.numel() == wanted.numel() else self.mask
            limit.require(given.shape == wanted.shape, f"{found}, atten_mask is {shape(self.mask)}")
            known = values.of(self.mask)
            same = known is None or torch.equal(known.reshape(wanted.shape).bool(), wanted)
            limit.require(same, f"{found}, atten_mask has other values")

    def masked(self, index: int, sequences: int, heads: int, rows: int, columns: int) -> torch.Tensor | None:
        """Return the bool mask of sequence ``index``, which broadcasts to [N, Sq, Skv], or None if nothing is masked.

        Raises:
            LimitNotKept: a real NPU would return a different result for these arguments.
        """
        pre, following = self.pre_tokens, self.next_tokens
        if values.only_shapes():
            return None if self.mask is None else self._by_mode(self.mask, index, (sequences, heads, rows, columns))
        top_left = outside_band(rows, columns, pre, following, 0)
        if self.mask is None:
            found = f"pre_tockens is {pre}, next_tockens is {following}, atten_mask is None"
            limits.MASK_MISSING.require(not top_left.any() or location.is_inside(_RING), found)
            return None
        masked = self._by_mode(self.mask, index, (sequences, heads, rows, columns))
        found = f"sparse_mode is {self.mode}, pre_tockens is {pre}, next_tockens is {following}"
        if self.mode == 0:
            limits.BAND_OUTSIDE_MASK.require(not (top_left & ~masked).any(), found)
        elif self.mode in (1, 2, 3, 5, 6):
            shift = columns - rows if self.mode == 3 else 0
            ignored = outside_band(rows, columns, pre, following, shift)
            limits.TOKENS_IGNORED.require(not (ignored & ~masked).any(), found)
        self._require_no_empty_row(masked, rows, columns)
        return masked

    def _by_mode(self, mask: torch.Tensor, index: int, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        sequences, _, rows, columns = sizes
        shift = columns - rows
        if self.mode in (0, 1):
            return self._full_mask(mask, index, sizes)
        if self.mode == 4:
            return outside_band(rows, columns, self.pre_tokens, self.next_tokens, shift)
        if self.mode in (5, 6):
            return self._prefix_mask(mask, index, sizes)
        split = (self.mode == 7 and index == sequences - 1) or (self.mode == 8 and index == 0)
        if split:
            kept = self.pre_tokens >= columns and (self.mode == 8 or self.next_tokens <= 0)
            found = f"sparse_mode is {self.mode}, pre_tockens is {self.pre_tokens}, next_tockens is {self.next_tokens}"
            limits.SPLIT_BAND.require(kept, f"{found}, Skv is {columns}")
            return outside_band(rows, columns, self.pre_tokens, self.next_tokens, shift)
        if self.mode == 3 and self.causal_needs_keys:
            limits.CAUSAL_LENGTHS.require(rows <= columns, f"Sq is {rows}, Skv is {columns}")
        return outside_band(rows, columns, NO_LIMIT, 0, shift if self.mode in (3, 7) else 0)

    def _full_mask(self, mask: torch.Tensor, index: int, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        sequences, heads, rows, columns = sizes
        size = tuple(mask.shape)
        found = f"atten_mask is {list(size)}, the scores are {list(sizes)}"
        if mask.dim() == 2:
            fits = size[0] >= rows and size[1] >= columns if self.packed else size == (rows, columns)
            limits.MASK_SHAPE.require(fits, found)
            return mask[:rows, :columns].bool()[None]
        fits = not self.packed and mask.dim() == 4 and size[2:] == (rows, columns)
        fits = fits and size[:2] in ((sequences, heads), (sequences, 1), (1, 1))
        limits.MASK_SHAPE.require(fits, found)
        return mask[min(index, size[0] - 1)].bool()

    def _prefix_mask(self, mask: torch.Tensor, index: int, sizes: tuple[int, int, int, int]) -> torch.Tensor:
        rows, columns = sizes[2:]
        length = self.prefix[index]
        found = f"prefix is {length}, Sq is {rows}, Skv is {columns}"
        limits.PREFIX.require(max(0, columns - rows) <= length <= columns, found)
        shift = columns - rows
        masked = outside_band(rows, columns, NO_LIMIT, 0, shift) & (torch.arange(columns) >= length)
        if self.mode == 5 and not values.only_shapes():
            given = self._full_mask(mask, index, sizes)
            limits.PREFIX_MASK.require(bool((given == masked).all()), f"{found}, atten_mask has other values")
        return masked[None]

    def _require_no_empty_row(self, masked: torch.Tensor, rows: int, columns: int) -> None:
        empty = masked.all(-1)
        if not empty.any():
            return
        row = int(empty.nonzero()[0, -1])
        found = f"sparse_mode is {self.mode}, inner_precise is {self.inner_precise}"
        found += f", all keys of row {row} of {rows} are masked"
        if self.packed:
            limits.EMPTY_ROW_TND.require(False, found)
        seen = self.inner_precise == 2 or (self.mode == 3 and rows > columns)
        limits.EMPTY_ROW.require(seen, found)


def outside_band(rows: int, columns: int, pre: int, following: int, shift: int) -> torch.Tensor:
    """Return a mask [Sq, Skv] that is True where key j is outside [i + shift - pre, i + shift + next] of query i."""
    distance = torch.arange(columns)[None] - torch.arange(rows)[:, None] - shift
    return (distance > following) | (distance < -pre)


@cache
def compressed_mask(mode: int) -> torch.Tensor | None:
    """Return the compressed mask of a mode, which is the same for all lengths, or None for a mode with a full mask."""
    if mode not in (*COMPRESSED, 6):
        return None
    above = torch.ones(limits.MASK_SIDE, limits.MASK_SIDE, dtype=torch.bool, device="cpu").triu(1)
    if mode != 6:
        return above
    right = torch.arange(limits.MASK_SIDE, device="cpu") >= limits.MASK_SIDE // 2
    return torch.cat((above, right.expand(PREFIX_ROWS, -1)))
