"""Reference of cross_entropy, in plain torch. It saves the logits and one value per token for backward.

Exponentials, and logits in the dtype of the computation, exist for a few rows at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from ascend_adapt.kernels import tracing
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall

_PIECE = 2**25
"""Maximum number of logits that are computed with at a time."""


def supports(call: CrossEntropyCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: CrossEntropyCall) -> torch.Tensor:
    """Return the loss of each token, [T], in fp32, or in fp64 for fp64 logits."""
    if tracing.is_transformed():  # torch.func does not support an autograd function with a custom backward
        return losses_and_normaliser(call.logits, call)[0]
    losses: torch.Tensor = _CrossEntropy.apply(call.logits, call)
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, call: CrossEntropyCall) -> torch.Tensor:
        losses, normaliser = losses_and_normaliser(logits, call)
        ctx.call = call
        ctx.save_for_backward(logits, normaliser)
        return losses

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, normaliser = ctx.saved_tensors
        return gradient(logits, normaliser, grads[0], ctx.call, torch.empty_like(logits)), None


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the dtype of the computation."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def losses_and_normaliser(logits: torch.Tensor, call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the log-sum-exp over all ranks of each token, both [T].

    A label that is neither in the vocabulary nor ``ignore_index`` gives NaN.
    """
    labels, columns = call.labels, logits.shape[-1]
    top = exact(logits.amax(-1))
    _over_ranks(top, call.group, torch.distributed.ReduceOp.MAX)
    pieces = zip(_pieces(logits, columns), _pieces(top, columns), strict=True)
    total = torch.cat([(exact(piece) - highest[:, None]).exp_().sum(-1) for piece, highest in pieces])
    here = (labels >= call.first) & (labels < call.first + columns)
    column = (labels - call.first).masked_fill(~here, 0)[:, None]
    target = exact(logits.gather(-1, column)[:, 0]).masked_fill(~here, 0.0)
    everything = logits.sum(-1, dtype=top.dtype) if call.label_smoothing else torch.zeros_like(top)
    sums = torch.stack([total, target, everything])
    _over_ranks(sums, call.group, torch.distributed.ReduceOp.SUM)
    total, target, everything = sums.unbind()
    normaliser = top + total.log()
    share = call.label_smoothing
    losses = normaliser - (1 - share) * target
    if share:
        losses = losses - share * everything / call.vocabulary
    outside = (labels < 0) | (labels >= call.vocabulary)
    losses = losses.masked_fill(outside, float("nan"))
    return losses.masked_fill(labels == call.ignore_index, 0.0), normaliser


def gradient(
    logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, call: Any, into: torch.Tensor
) -> torch.Tensor:
    """Write the logits' gradient [T, V], given the losses' gradient [T], into ``into``, and return it.

    ``into`` may be the logits.
    """
    columns = logits.shape[-1]
    pieces = zip(*(_pieces(each, columns) for each in (logits, normaliser, grad, call.labels)), strict=True)
    for result, piece in zip(_pieces(into, columns), pieces, strict=True):
        result.copy_(_gradient_of_piece(call, *piece))
    return into


def _gradient_of_piece(
    call: Any, logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    result = (exact(logits) - normaliser[:, None]).exp_()
    if call.label_smoothing:
        result -= call.label_smoothing / call.vocabulary
    here = (labels >= call.first) & (labels < call.first + logits.shape[-1])
    column = (labels - call.first).masked_fill(~here, 0)[:, None]
    result.scatter_add_(-1, column, (here.to(result.dtype) * (call.label_smoothing - 1.0))[:, None])
    counts = grad.masked_fill(labels == call.ignore_index, 0.0)
    return result.mul_(counts[:, None])


def _pieces(tensor: torch.Tensor, columns: int) -> tuple[torch.Tensor, ...]:
    """Return pieces of a tensor [T, ...] of few rows of logits [T, V]."""
    pieces: tuple[torch.Tensor, ...] = tensor.split(max(1, _PIECE // max(1, columns)))
    return pieces


def _over_ranks(tensor: torch.Tensor, group: Any, operation: Any) -> None:
    if group is not None:
        torch.distributed.all_reduce(tensor, operation, group)
