"""One call of npu_fusion_attention: checks its arguments and splits them into sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ascend_adapt.emulation.operators.fusion_attention.arguments import Arguments
from ascend_adapt.emulation.operators.fusion_attention.arithmetic import LANES, Problem
from ascend_adapt.emulation.operators.fusion_attention.layouts import AxisPlace, TensorLayout, layout_of, packed_places
from ascend_adapt.emulation.operators.fusion_attention.position_bias import FROM_SLOPES, PositionBias
from ascend_adapt.emulation.operators.fusion_attention.sparse_modes import SparseMode
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import fusion_attention as limits


class FusionAttentionCall:
    """A checked call: the constructor checks the limits of the entire call, ``problems`` those of each sequence.

    Raises:
        LimitNotKept: the call violates a documented limit.
    """

    def __init__(self, arguments: Arguments, *, causal_needs_keys: bool = False):
        self.arguments = arguments
        given = arguments
        self.layout: TensorLayout = layout_of(given.input_layout, given.query, given.key, given.value)
        self.heads = given.head_num
        self._require_sizes()
        self.places = self._places()
        lengths = (self.layout.length(given.query), self.layout.length(given.key))
        self.bias = PositionBias(given, (len(self.places), self.heads, *lengths), self.layout.packed)
        self._require_options()
        self.mask = SparseMode(
            given.sparse_mode,
            given.atten_mask,
            given.pre_tokens,
            given.next_tokens,
            tuple(given.prefix or ()),
            given.inner_precise,
            self.layout.packed,
            causal_needs_keys,
        )
        self.mask.require(len(self.places))

    @property
    def score_count(self) -> int:
        """Return the number of scores of all sequences, which is the number of bits in a dropout mask."""
        return sum(self.heads * self.length(rows, 0) * self.length(columns, 1) for rows, columns in self.places)

    def problems(self, keep: torch.Tensor | None) -> Iterator[tuple[AxisPlace, AxisPlace, Problem]]:
        """Yield each non-empty sequence, with its positions in query and key.

        ``keep`` is flat: the scores of all sequences, concatenated.
        """
        given, sequences, done = self.arguments, len(self.places), 0
        for index, (rows, columns) in enumerate(self.places):
            sizes = (self.heads, self.length(rows, 0), self.length(columns, 1))
            count = sizes[0] * sizes[1] * sizes[2]
            kept = None if keep is None else keep[done : done + count].reshape(sizes)
            done += count
            if not count:
                continue
            query = wide(self.layout.sequence(given.query, rows, self.heads))
            key = wide(self.layout.sequence(given.key, columns, self.kv_heads))
            value = wide(self.layout.sequence(given.value, columns, self.kv_heads))
            if given.query_rope is not None and given.key_rope is not None:
                query = torch.cat((query, wide(self.layout.sequence(given.query_rope, rows, self.heads))), -1)
                key = torch.cat((key, wide(self.layout.sequence(given.key_rope, columns, self.kv_heads))), -1)
            shared = self.heads // self.kv_heads
            bias = self.bias.of_sequence(index, *sizes[1:])
            yield (
                rows,
                columns,
                Problem(
                    query,
                    key.repeat_interleave(shared, 0),
                    value.repeat_interleave(shared, 0),
                    None if bias is None else bias.to(query.dtype),
                    self.mask.masked(index, sequences, *sizes),
                    kept,
                    None if given.sink is None else wide(given.sink).to(query.dtype),
                    given.scale,
                    self.bias.before_scaling,
                    given.keep_prob,
                ),
            )

    def empty_statistics(self) -> torch.Tensor:
        """Return zeros for softmax_max or softmax_sum: float32 [B, N, Sq, 8], or [T, N, 8] for packed tokens."""
        query = self.arguments.query
        if self.layout.packed:
            return torch.zeros(query.shape[0], self.heads, LANES)
        return torch.zeros(len(self.places), self.heads, self.layout.length(query), LANES)

    def statistics(self, tensor: torch.Tensor, place: AxisPlace) -> torch.Tensor:
        """Return the view [N, Sq, 8] of one sequence in softmax_max or softmax_sum.

        For packed tokens without softmax_layout="TND", the memory of the [T, N, 8] tensor holds one [N, Sq, 8] block
        per document (MindSpeed's ring attention undoes this in its flatten_softmax).
        """
        if not self.layout.packed:
            return tensor[place.index]
        if self.arguments.softmax_layout == "TND":
            return tensor[place.start : place.end].transpose(0, 1)
        block = tensor.view(-1, LANES)[place.start * self.heads : place.end * self.heads]
        return block.view(self.heads, place.end - place.start, LANES)

    def length(self, place: AxisPlace, which: int) -> int:
        """Return the number of queries (``which`` 0) or keys (``which`` 1) of a sequence."""
        if self.layout.packed:
            return place.end - place.start
        return self.layout.length((self.arguments.query, self.arguments.key)[which])

    def _require_sizes(self) -> None:
        given, layout = self.arguments, self.layout
        found = f"query is {shape(given.query)}, key is {shape(given.key)}, value is {shape(given.value)}"
        found = f"head_num is {given.head_num}, input_layout is {given.input_layout!r}, {found}"
        folded = layout.name in ("BSH", "SBH")
        whole = given.head_num > 0 and (not folded or given.query.shape[2] % given.head_num == 0)
        limits.HEAD_NUM.require(whole, found)
        batch, heads, size = layout.sizes(given.query, given.head_num)
        limits.HEAD_NUM.require(heads == given.head_num, found)
        if folded:
            limits.HEADS.require(given.key.shape[2] % size == 0 and given.key.shape[2] >= size, found)
            self.kv_heads = given.key.shape[2] // size
            limits.HEADS.require(given.value.shape[2] % self.kv_heads == 0, found)
        else:
            self.kv_heads = layout.sizes(given.key, 0)[1]
        limits.HEADS.require(heads in limits.HEAD_COUNTS and self.kv_heads > 0 and heads % self.kv_heads == 0, found)
        key, value = (layout.sizes(tensor, self.kv_heads) for tensor in (given.key, given.value))
        alike = key[:2] == value[:2] and layout.length(given.key) == layout.length(given.value) and key[0] == batch
        limits.KEY_AND_VALUE.require(alike, found)
        limits.HEAD_SIZE.require(1 <= value[2] <= key[2] == size and size in limits.WIDTHS, found)
        limits.BATCH.require(layout.packed or batch in limits.BATCH_SIZES, found)
        lengths = (layout.length(given.query), layout.length(given.key))
        limits.LENGTHS.require(all(length in limits.SEQUENCE_LENGTHS for length in lengths), found)
        tensors = {"query": given.query, "key": given.key, "value": given.value, "pse": given.pse}
        dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
        if given.pse_type in FROM_SLOPES:
            dtypes.pop("pse", None)
        found = ", ".join(f"{name} is {str(found).removeprefix('torch.')}" for name, found in dtypes.items())
        limits.DTYPES.require(len(set(dtypes.values())) == 1 and given.query.dtype in FLOATS, found)

    def _places(self) -> list[tuple[AxisPlace, AxisPlace]]:
        given = self.arguments
        if not self.layout.packed:
            batch = self.layout.sizes(given.query, self.heads)[0]
            return [(AxisPlace(index), AxisPlace(index)) for index in range(batch)]
        rows, columns = packed_places(given.actual_seq_qlen), packed_places(given.actual_seq_kvlen)
        found = (
            f"actual_seq_qlen is {_ends(given.actual_seq_qlen)}, actual_seq_kvlen is {_ends(given.actual_seq_kvlen)}"
        )
        tokens = (self.layout.length(given.query), self.layout.length(given.key))
        found += f", the tokens are {tokens[0]} and {tokens[1]}"
        limits.ACTUAL_LENGTHS.require(bool(rows) and len(rows) == len(columns), found)
        limits.SEQUENCES.require(len(rows) in limits.PACKED_SEQUENCES, f"actual_seq_qlen has {len(rows)} ends")
        for places, count in ((rows, tokens[0]), (columns, tokens[1])):
            rising = all(place.start <= place.end for place in places)
            limits.ACTUAL_LENGTHS.require(rising and places[-1].end <= count, found)
        return list(zip(rows, columns, strict=True))

    def _require_options(self) -> None:
        given = self.arguments
        limits.KEEP_PROB.require(0 < given.keep_prob <= 1, f"keep_prob is {given.keep_prob}")
        limits.PADDING_MASK.require(given.padding_mask is None, "padding_mask is given")
        fits = given.softmax_layout == "" or (given.softmax_layout == "TND" and self.layout.packed)
        found = f"softmax_layout is {given.softmax_layout!r}, input_layout is {given.input_layout!r}"
        limits.SOFTMAX_LAYOUT.require(fits, found)
        self.bias.require(self.layout.packed and any(rows.start == rows.end for rows, _ in self.places))
        if given.sink is not None:
            right = given.sink.dtype == torch.float32 and list(given.sink.shape) == [self.heads]
            limits.SINK.require(right, f"sink is {dtype(given.sink)} {shape(given.sink)}, head_num is {self.heads}")
        if given.query_rope is not None or given.key_rope is not None:
            self._require_rope()

    def _require_rope(self) -> None:
        given = self.arguments
        query, key = given.query_rope, given.key_rope
        found = f"query_rope is {'None' if query is None else shape(query)}"
        found += f", key_rope is {'None' if key is None else shape(key)}, input_layout is {given.input_layout!r}"
        fits = query is not None and key is not None and self.layout.packed and given.atten_mask is not None
        limits.ROPE.require(fits and given.pse is None and given.keep_prob == 1, found)
        limits.PSE_TYPE.require(given.pse_type == 1, f"pse_type is {given.pse_type}, query_rope is given")
        if query is None or key is None:
            return
        size = query.shape[-1]
        fits = query.shape[:-1] == given.query.shape[:-1] and key.shape[:-1] == given.key.shape[:-1]
        fits = fits and size == key.shape[-1] and size % 8 == 0 and size <= given.query.shape[-1]
        limits.ROPE.require(fits and query.dtype == key.dtype == given.query.dtype == torch.bfloat16, found)


def _ends(ends: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    return None if ends is None else [int(end) for end in ends]
