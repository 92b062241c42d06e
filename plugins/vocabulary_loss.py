"""Cross entropy over a vocabulary that is split over tensor-parallel ranks, shared by the Megatron forks."""

from __future__ import annotations

from typing import Any


def is_fp64(logits: Any) -> bool:
    """Return whether logits are fp64, for which each code base returns a loss of another dtype."""
    return str(logits.dtype) == "torch.float64"


def vocabulary_loss(logits: Any, target: Any, group: Any) -> Any:
    """Loss of each token, fp32, from logits [..., V / TP] and labels; 0 where a label is negative."""
    from ascend_adapt.kernels import cross_entropy

    # Masked positions have negative labels: there the loss of upstream is finite, and must stay finite.
    return cross_entropy(
        logits,
        target.clamp(min=-1),
        ignore_index=-1,
        reduction="none",
        group=group if group.size() > 1 else None,
    )
