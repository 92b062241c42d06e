"""linear_cross_entropy in chunks of tokens, for any implementation of a chunk's losses and gradient.

With ``mean`` or ``sum``, the loss gradient of all tokens that are not ignored is the same. So forward computes the
gradients of the inputs for a loss gradient of 1, while a chunk's logits are in memory, and backward scales them. In
fp16, the gradient of one token of a mean would underflow before a loss scale could prevent it. With ``none``, backward
recomputes the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from ascend_adapt.kernels import tracing, wide_products
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.cross_entropy._reference import exact
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall

_CHUNK_BYTES = 2**30
"""Upper bound of one chunk's logits in bytes. A few copies are live at a time. Each chunk adds to the fp32 gradient."""

_EVEN = 128
"""Minimum number of rows of a chunk on a device: one tile of a matrix product."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic on the logits of a chunk, [t, V]: the losses, and the gradient of the logits.

    Without a bias, the logits are in the dtype of the inputs.
    """

    losses_and_normaliser: Callable[[torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]
    gradient: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]
    """Computes the gradient of the logits, and may overwrite the logits with it."""
    scaled: Callable[[torch.Tensor, torch.Tensor | float, torch.dtype], torch.Tensor]
    """Multiplies a tensor by a factor, in another dtype."""


def by_chunks(call: LinearCrossEntropyCall, arithmetic: Arithmetic) -> torch.Tensor:
    """Return the loss: a scalar, or with ``none`` one per token, [T]."""
    inputs = (call.hidden, call.weight, call.bias)
    loss: torch.Tensor
    if tracing.is_transformed():
        return _at_once(call, arithmetic)
    if call.reduction == "none":
        loss = _ByToken.apply(*inputs, call, arithmetic)
    else:
        # An autograd function's needs_input_grad ignores no_grad.
        loss = _AllAtOnce.apply(*inputs, call, arithmetic, torch.is_grad_enabled())
    return loss


@dataclass(frozen=True)
class _Chunk:
    """A chunk of a call's tokens, with the attributes that cross_entropy's arithmetic reads."""

    labels: torch.Tensor
    ignore_index: int
    label_smoothing: float
    group: Any
    first: int
    vocabulary: int
    rows: slice


def _chunks(call: LinearCrossEntropyCall) -> Iterator[_Chunk]:
    tokens, like = len(call.labels), call.hidden[:0]
    each = (exact(like) if call.bias is not None else like).element_size()
    most = max(1, _CHUNK_BYTES // (each * max(1, call.weight.shape[0])))
    if most > _EVEN:
        most -= most % _EVEN
    # Chunks have nearly equal sizes, because a short last chunk would not fill the device.
    size = -(-tokens // -(-tokens // most)) if tokens else 1
    if size > _EVEN:
        size += -size % _EVEN
    for start in range(0, tokens, size):
        rows = slice(start, min(start + size, tokens))
        yield _Chunk(
            call.labels[rows],
            call.ignore_index,
            call.label_smoothing,
            call.group,
            call.first,
            call.vocabulary,
            rows,
        )


def _at_once(call: LinearCrossEntropyCall, arithmetic: Arithmetic) -> torch.Tensor:
    """Return the loss, computed from all logits at once with plain operators, which torch.func can transform."""
    parts = []
    for chunk in _chunks(call):
        logits = _logits(call.hidden[chunk.rows], call.weight, call.bias)
        parts.append(arithmetic.losses_and_normaliser(logits, chunk)[0])
    losses = torch.cat(parts)
    if call.reduction == "none":
        return losses
    total = losses.sum()
    return total if call.reduction == "sum" else total / (call.labels != call.ignore_index).sum()


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    products = hidden @ weight.t()
    if bias is not None:
        return exact(products) + bias
    return products


class _Gradients:
    """The gradients of the three inputs, filled chunk by chunk. Those of weight and bias are summed in fp32."""

    def __init__(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, needed: tuple[bool, ...]
    ) -> None:
        self.weight_in = weight
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.needs_weight = needed[1]
        self.weight: torch.Tensor | None = None
        self.bias = torch.zeros_like(exact(bias)) if needed[2] and bias is not None else None

    def add(self, hidden: torch.Tensor, of_logits: torch.Tensor, rows: slice) -> None:
        """Add the gradients of some rows, given their hidden states [t, H] and logits' gradient [t, V]."""
        rounded = of_logits.to(hidden.dtype)
        if self.hidden is not None:
            torch.mm(rounded, self.weight_in, out=self.hidden[rows])
        if self.needs_weight:
            if self.weight is None:
                self.weight = wide_products.product(rounded.t(), hidden, exact(rounded[:0]).dtype)
            else:
                wide_products.add_product(self.weight, rounded.t(), hidden)
        if self.bias is not None:
            self.bias += of_logits.sum(0)

    def summed(self, group: Any) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients. That of hidden is summed over the ranks of the vocabulary."""
        if self.hidden is not None and group is not None:
            torch.distributed.all_reduce(self.hidden, group=group)
        if self.needs_weight and self.weight is None:  # the call has no tokens
            self.weight = torch.zeros_like(exact(self.weight_in))
        return self.hidden, self.weight, self.bias


def _sum_of_chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    chunk: _Chunk,
    arithmetic: Arithmetic,
    gradients: _Gradients | None,
) -> torch.Tensor:
    """Return the summed loss of one chunk, and add its gradients. Frees the logits before the next chunk."""
    logits = _logits(hidden, weight, bias)
    losses, normaliser = arithmetic.losses_and_normaliser(logits, chunk)
    total = losses.sum()
    if gradients is not None:
        of_logits = arithmetic.gradient(logits, normaliser, torch.ones_like(total).expand(len(losses)), chunk)
        del logits
        gradients.add(hidden, of_logits, chunk.rows)
    return total


def scaled(tensor: torch.Tensor, factor: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor times a factor, rounded once to ``dtype``."""
    return torch.mul(exact(tensor), factor, out=torch.empty_like(tensor, dtype=dtype))


def _finished(
    arithmetic: Arithmetic,
    gradients: Iterable[torch.Tensor | None],
    factor: torch.Tensor | float,
    dtypes: Iterable[torch.dtype],
) -> Iterator[torch.Tensor | None]:
    """Yield the gradients times a factor, in the dtypes of the inputs."""
    for each, dtype in zip(gradients, dtypes, strict=True):
        yield None if each is None else arithmetic.scaled(each, factor, dtype)


class _AllAtOnce(torch.autograd.Function):
    """A reduced loss whose gradients are computed in forward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        call: LinearCrossEntropyCall,
        arithmetic: Arithmetic,
        wanted: bool,
    ) -> torch.Tensor:
        needed = ctx.needs_input_grad[:3]
        gradients = _Gradients(hidden, weight, bias, needed) if wanted and any(needed) else None
        total = torch.zeros((), dtype=exact(hidden[:0]).dtype, device=hidden.device)
        for chunk in _chunks(call):
            total += _sum_of_chunk(hidden[chunk.rows], weight, bias, chunk, arithmetic, gradients)
        counted = (call.labels != call.ignore_index).sum() if call.reduction == "mean" else torch.ones_like(total)
        if gradients is not None:
            ctx.arithmetic = arithmetic
            ctx.dtypes = [hidden.dtype if each is None else each.dtype for each in (hidden, weight, bias)]
            ctx.save_for_backward(*gradients.summed(call.group), counted)
        return total / counted

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *gradients, counted = ctx.saved_tensors
        # If all tokens are ignored, the loss is NaN and the gradients are zero, as in torch.
        factor = grads[0] / counted.clamp(min=1)
        return (*_finished(ctx.arithmetic, gradients, factor, ctx.dtypes), None, None, None)


class _ByToken(torch.autograd.Function):
    """The loss of each token. backward recomputes the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        call: LinearCrossEntropyCall,
        arithmetic: Arithmetic,
    ) -> torch.Tensor:
        chunks = [
            arithmetic.losses_and_normaliser(_logits(hidden[chunk.rows], weight, bias), chunk)
            for chunk in _chunks(call)
        ]
        empty = exact(hidden.new_zeros(0))
        losses, normaliser = (torch.cat([empty, *(pair[index] for pair in chunks)]) for index in (0, 1))
        ctx.call, ctx.arithmetic = call, arithmetic
        ctx.save_for_backward(hidden, weight, bias, normaliser)
        return losses

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, normaliser = ctx.saved_tensors
        gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad[:3])
        for chunk in _chunks(ctx.call):
            rows = chunk.rows
            gradients.add(
                hidden[rows],
                # A variable would keep these logits alive during the next chunk.
                ctx.arithmetic.gradient(_logits(hidden[rows], weight, bias), normaliser[rows], grads[0][rows], chunk),
                rows,
            )
        dtypes = [hidden.dtype if each is None else each.dtype for each in (hidden, weight, bias)]
        return (*_finished(ctx.arithmetic, gradients.summed(ctx.call.group), 1.0, dtypes), None, None)
