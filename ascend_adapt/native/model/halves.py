"""The two halves of a micro batch under tensor parallelism: collectives of one overlap the computation of the other.

In each layer a half enters the tensor-parallel region, computes, and leaves it. Each boundary is a collective. A half
takes turns with the other: a short turn waits for the collective that leaves the previous layer, adds the result to the
residual stream, and starts the collective that enters the next layer; a long turn waits for that, computes the layer,
and starts the collective that leaves it. In the middle of a long turn, after the layer's first matrix product, the
other half takes its short turn. Each collective therefore has a matrix product of the other half to overlap with, in
the backward pass too, which runs in the reverse order (Domino, arXiv 2409.15241, overlaps without such short turns).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from ascend_adapt.native.model.layers import AttentionContext, Norm, TransformerBlock
from ascend_adapt.native.parallel.in_flight import Half, InFlight, WeightGradient
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel

VARIABLE = "ASCEND_ADAPT_TENSOR_OVERLAP"
"""Environment variable; 0 runs whole micro batches, 1 halves, also where steps are not CUDA graphs."""


def through(
    blocks: Sequence[TransformerBlock],
    x: torch.Tensor,
    context: AttentionContext,
    tp: TensorParallel,
    final_norm: Norm | None,
    *,
    fused: bool,
    arrive: Callable[[nn.Module], None],
) -> torch.Tensor:
    """Return the residual stream after the blocks, normalised by ``final_norm``, from an even number of rows ``x``.

    ``fused``: whether a norm and the residual add before it are one kernel; ``arrive`` waits for a module's weights.
    """
    gradients: defaultdict[torch.Tensor, WeightGradient] = defaultdict(WeightGradient)
    lanes = [
        _Lane(rows, _of_half(context, tp, number), Half(gradients), fused) for number, rows in enumerate(x.chunk(2))
    ]
    first, second = (_turns(lane, blocks, tp, final_norm, arrive) for lane in lanes)
    next(first)
    for _ in range(2 * len(blocks)):
        for lane, turns, others in ((lanes[0], first, second), (lanes[1], second, first)):
            lane.half.meanwhile = partial(next, others)
            next(turns)
    next(second)
    return torch.cat([lane.x for lane in lanes])


class _Lane:
    """One half: its residual stream, and the outputs of layers that have not been added to it."""

    def __init__(self, x: torch.Tensor, context: AttentionContext, half: Half, fused: bool) -> None:
        self.x, self.context, self.half, self._fused = x, context, half, fused
        self.outputs: list[tuple[TransformerBlock, InFlight, torch.Tensor | None]] = []

    def add_outputs(self, norm: Norm | None) -> torch.Tensor:
        """Add the outputs to the residual stream; return its norm."""
        outputs, self.outputs = self.outputs, []
        for number, (block, output, bias) in enumerate(outputs, 1):
            value = output.wait()
            if norm is not None and self._fused and number == len(outputs):
                self.x, normed = norm(self.x, block.branch(value, bias))
                return normed
            self.x = self.x + block.dropped(value if bias is None else value + bias)
        return self.x if norm is None else norm(self.x)


def _turns(
    lane: _Lane,
    blocks: Sequence[TransformerBlock],
    tp: TensorParallel,
    final_norm: Norm | None,
    arrive: Callable[[nn.Module], None],
) -> Iterator[None]:
    """Take one turn at each call: short and long ones alternately, and a short one at the end."""
    for block in blocks:
        arrive(block)
        entering = tp.entering(lane.add_outputs(block.input_norm))
        yield
        whole = entering.wait()
        attended = block.attention(whole, lane.context, half=lane.half)
        lane.outputs.append((block, attended, block.attention.dense.bias))
        yield
        if block.model.parallel_residual and not block.model.shared_norm:
            entering = tp.entering(block.post_attention_norm(lane.x))
        elif not block.model.parallel_residual:
            entering = tp.entering(lane.add_outputs(block.post_attention_norm))
        yield
        if not block.model.shared_norm:
            whole = entering.wait()
        lane.outputs.append((block, block.mlp(whole, half=lane.half), block.mlp.dense_4h_to_h.bias))
        yield
    if final_norm is not None:
        arrive(final_norm)
    lane.x = lane.add_outputs(final_norm)
    yield


def _of_half(context: AttentionContext, tp: TensorParallel, number: int) -> AttentionContext:
    """Return the attention masks of a half's rows."""
    masked_out, prefix = (
        None if each is None else tp.rows_of_half(each, number) for each in (context.masked_out, context.prefix)
    )
    return replace(context, masked_out=masked_out, prefix=prefix)
