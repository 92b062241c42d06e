"""Fused linear layer and cross entropy, without holding all logits in memory at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall
from ascend_adapt.kernels.operators.cross_entropy import check_labels


@dataclass(eq=False)
class LinearCrossEntropyCall(KernelCall):
    """The checked arguments of linear_cross_entropy: hidden [T, H] and labels [T]. The result is the reduced loss."""

    hidden: Any
    weight: Any
    labels: Any
    bias: Any = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    group: Any = None
    first: int = 0
    """The token id of the first row of ``weight``."""
    vocabulary: int = 0
    """The total number of rows of all ranks."""

    def small(self) -> LinearCrossEntropyCall | None:
        """Return a small call with a few narrow tokens, or None with a group, whose ranks would all have to call."""
        if self.group is not None:
            return None
        tokens, width = min(small_tensors.ROWS, len(self.labels)), min(small_tensors.SIDE, self.hidden.shape[1])
        alike, rows = small_tensors.maker(), self.weight.shape[0]
        return replace(
            self,
            hidden=alike(self.hidden, tokens, width),
            weight=alike(self.weight, rows, width),
            labels=self.labels[:tokens],
            bias=alike(self.bias, rows),
        )


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    labels: Any,
    *,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    group: Any = None,
    vocab_range: tuple[int, int] | None = None,
) -> Any:
    """Return cross_entropy(hidden weight^T + bias, labels) in fp32, without ever storing the logits of all tokens.

    Args:
        hidden: [..., H], the same on every rank of ``group``.
        weight: [V, H]; with ``group``, this rank's rows.
        labels: int64 [...], ids in the full vocabulary.
        bias: [V], or None.
        ignore_index: label of tokens without loss and gradient.
        label_smoothing: fraction of the target that is distributed uniformly over the full vocabulary, as in torch.
        reduction: ``mean`` over the tokens that are not ignored (NaN without such tokens), ``sum``, or ``none``, which
            returns [...].
        group: process group over which the vocabulary is split. The gradient of ``hidden`` is already summed over the
            group; do not sum it again.
        vocab_range: this rank's first id, and one past its last. All ranks have the same number of ids, by default in
            rank order.

    Raises:
        KernelArgumentError: shapes do not match, the reduction is unknown, or a label is outside the vocabulary. Labels
            are checked on a CPU without compilation; elsewhere, such a label gives a loss of NaN.
        BackendUnavailable: the requested backend does not support the call.
    """
    check_float("hidden", hidden, shape="[..., H]", least=1)
    check_float("weight", weight, 2, "[V, H]")
    if weight.shape[1] != hidden.shape[-1]:
        raise KernelArgumentError(
            f"hidden {list(hidden.shape)}, weight {list(weight.shape)}: expected [..., H] and [V, H] — transpose one"
        )
    if hidden.dtype != weight.dtype:
        raise KernelArgumentError(
            f"hidden is {hidden.dtype}, weight {weight.dtype}: expected one dtype — convert one, as autocast does"
        )
    rows = int(weight.shape[0])
    check_float_or_none("bias", bias, (rows,), f"weight {list(weight.shape)}")
    check_together("hidden", hidden, weight=weight, bias=bias)
    first, vocabulary = check_labels(
        "hidden", hidden, rows, labels, ignore_index, label_smoothing, reduction, group, vocab_range
    )
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    call = LinearCrossEntropyCall(
        flat, weight, targets, bias, ignore_index, label_smoothing, reduction, group, first, vocabulary
    )
    loss = KERNEL(call)
    return loss.reshape(labels.shape) if reduction == "none" else loss


# Every backend uses torch's matrix products. Without Triton, the other operations would take longer on CUDA.
KERNEL = Kernel("linear_cross_entropy")
