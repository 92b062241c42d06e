"""Reference of cross_entropy, in plain torch. It saves the logits and one value per token for backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from ascend_adapt.kernels import tracing
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall


def supports(call: CrossEntropyCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: CrossEntropyCall) -> torch.Tensor:
    """Return the loss of each token, [T], in fp32, or in fp64 for fp64 logits."""
    if tracing.is_transformed():  # torch.func does not support an autograd function with a custom backward
        return losses_and_normaliser(exact(call.logits), call)[0]
    losses: torch.Tensor = _CrossEntropy.apply(call.logits, call)
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, call: CrossEntropyCall) -> torch.Tensor:
        losses, normaliser = losses_and_normaliser(exact(logits), call)
        ctx.call = call
        ctx.save_for_backward(logits, normaliser)
        return losses

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, normaliser = ctx.saved_tensors
        return gradient(exact(logits), normaliser, grads[0], ctx.call).to(logits.dtype), None


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the dtype of the computation."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def losses_and_normaliser(logits: torch.Tensor, call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the log-sum-exp over all ranks of each token, both [T].

    A label that is neither in the vocabulary nor ``ignore_index`` gives NaN.
    """
    labels, columns = call.labels, logits.shape[-1]
    top = logits.amax(-1)
    _over_ranks(top, call.group, torch.distributed.ReduceOp.MAX)
    total = (logits - top[:, None]).exp_().sum(-1)
    here = (labels >= call.first) & (labels < call.first + columns)
    column = (labels - call.first).masked_fill(~here, 0)[:, None]
    target = logits.gather(-1, column)[:, 0].masked_fill(~here, 0.0)
    sums = torch.stack([total, target, logits.sum(-1)])
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
    logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, call: Any, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the logits' gradient [T, V], in the dtype of the computation, given the losses' gradient [T].

    ``out`` may be the logits.
    """
    labels, columns = call.labels, logits.shape[-1]
    result = torch.sub(logits, normaliser[:, None], out=out).exp_()
    if call.label_smoothing:
        result -= call.label_smoothing / call.vocabulary
    here = (labels >= call.first) & (labels < call.first + columns)
    column = (labels - call.first).masked_fill(~here, 0)[:, None]
    result.scatter_add_(-1, column, (here.to(result.dtype) * (call.label_smoothing - 1.0))[:, None])
    counts = grad.masked_fill(labels == call.ignore_index, 0.0)
    return result.mul_(counts[:, None])


def _over_ranks(tensor: torch.Tensor, group: Any, operation: Any) -> None:
    if group is not None:
        torch.distributed.all_reduce(tensor, operation, group)
