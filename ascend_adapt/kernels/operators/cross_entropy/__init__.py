"""Cross entropy of logits, whose vocabulary may be split over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors, tracing
from ascend_adapt.kernels.arguments import (
    check_float,
    check_number,
    check_shape,
    check_together,
    describe,
    is_tensor,
)
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall

REDUCTIONS = ("mean", "sum", "none")


@dataclass(eq=False)
class CrossEntropyCall(KernelCall):
    """The checked arguments of cross_entropy: logits [T, V] and labels [T]. Backends return each token's loss, [T]."""

    logits: Any
    labels: Any
    ignore_index: int = -100
    label_smoothing: float = 0.0
    group: Any = None
    first: int = 0
    """The token id of the first column of ``logits``."""
    vocabulary: int = 0
    """The total number of columns of all ranks."""

    def small(self) -> CrossEntropyCall | None:
        """Return a small call with a few tokens, or None with a group, whose ranks would wait for each other."""
        if self.group is not None:
            return None
        tokens = min(small_tensors.ROWS, len(self.labels))
        logits = small_tensors.maker()(self.logits, tokens, self.logits.shape[1])
        return replace(self, logits=logits, labels=self.labels[:tokens])


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    group: Any = None,
    vocab_range: tuple[int, int] | None = None,
) -> Any:
    """Return the cross entropy, computed and returned in fp32.

    Args:
        logits: [..., V]; with ``group``, this rank's columns.
        labels: int64 [...], ids in the full vocabulary.
        ignore_index: label of tokens without loss and gradient.
        label_smoothing: fraction of the target that is distributed uniformly over the full vocabulary, as in torch.
        reduction: ``mean`` over the tokens that are not ignored (NaN without such tokens), ``sum``, or ``none``, which
            returns [...].
        group: process group over which the vocabulary is split, in rank order.
        vocab_range: this rank's first id, and one past its last. All ranks have the same number of ids, by default in
            rank order.

    Raises:
        KernelArgumentError: shapes do not match, the reduction is unknown, or a label is outside the vocabulary. Labels
            are checked on a CPU without tracing; elsewhere, such a label gives a loss of NaN, or torch's device
            assertion fails.
        BackendUnavailable: the requested backend does not support the call.
    """
    check_float("logits", logits, shape="[..., V]", least=1)
    columns = int(logits.shape[-1])
    first, vocabulary = check_labels(
        "logits", logits, columns, labels, ignore_index, label_smoothing, reduction, group, vocab_range
    )
    flat = logits.reshape(-1, columns)
    call = CrossEntropyCall(flat, labels.reshape(-1), ignore_index, label_smoothing, group, first, vocabulary)
    return reduce(KERNEL(call), labels, ignore_index, reduction)


def check_labels(
    name: str,
    tensor: Any,
    columns: int,
    labels: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    group: Any,
    vocab_range: tuple[int, int] | None,
) -> tuple[int, int]:
    """Check the arguments; return the id of the first column and the size of the vocabulary."""
    if not is_tensor(labels) or str(labels.dtype) != "torch.int64":
        raise KernelArgumentError(
            f"labels: is {describe(labels)}, expected int64 {list(tensor.shape[:-1])} — convert it"
        )
    if not columns:
        raise KernelArgumentError(
            f"{name} {list(tensor.shape)}: a vocabulary of 0, expected at least 1 — pass its columns"
        )
    check_shape("labels", labels, tensor.shape[:-1], f"{name} {list(tensor.shape)}")
    check_together(name, tensor, labels=labels)
    if reduction not in REDUCTIONS:
        raise KernelArgumentError(f"reduction={reduction!r}: expected {', '.join(REDUCTIONS)} — correct it")
    if not isinstance(ignore_index, int):
        raise KernelArgumentError(f"ignore_index={ignore_index!r}: expected an int — correct it")
    check_number("label_smoothing", label_smoothing)
    if not 0.0 <= label_smoothing <= 1.0:
        raise KernelArgumentError(f"label_smoothing={label_smoothing!r}: expected 0 to 1 — correct it")
    if vocab_range is not None and not (isinstance(vocab_range, (tuple, list)) and len(vocab_range) == 2):
        raise KernelArgumentError(
            f"vocab_range={vocab_range!r}: expected the first id and one past the last — pass both"
        )
    first, vocabulary = _columns(name, columns, group, vocab_range)
    if labels.device.type == "cpu" and tracing.has_values(labels):
        wrong = labels[((labels < 0) | (labels >= vocabulary)) & (labels != ignore_index)]
        if len(wrong):
            raise KernelArgumentError(
                f"labels: hold {int(wrong[0])}, expected 0 to {vocabulary - 1}, or {ignore_index} to ignore a token — "
                "correct them"
            )
    return first, vocabulary


def _columns(name: str, columns: int, group: Any, vocab_range: tuple[int, int] | None) -> tuple[int, int]:
    if group is None:
        if vocab_range is not None and tuple(vocab_range) != (0, columns):
            raise KernelArgumentError(
                f"vocab_range={vocab_range!r}: given without a group, expected None, because {name} has all {columns} "
                "columns — pass the group"
            )
        return 0, columns
    import torch.distributed

    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    first, end = vocab_range or (rank * columns, (rank + 1) * columns)
    if end - first != columns:
        raise KernelArgumentError(
            f"vocab_range={vocab_range!r}: has {end - first} ids, expected as many as {name} has columns, {columns} — "
            "pass a matching range"
        )
    return first, size * columns


def reduce(losses: Any, labels: Any, ignore_index: int, reduction: str) -> Any:
    """Return the reduction of the losses of tokens, [T]."""
    if reduction == "none":
        return losses.reshape(labels.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum()


KERNEL = Kernel("cross_entropy")
