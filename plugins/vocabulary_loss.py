"""Cross entropy over a vocabulary that is split over tensor-parallel ranks, shared by the Megatron forks."""

from __future__ import annotations

import importlib
from typing import Any

from ascend_adapt import Call

from . import call_arguments

NAMES = ("vocab_parallel_logits", "target", "label_smoothing", "tp_group")
"""Arguments of vocab_parallel_cross_entropy; each fork supports the first two, three or four."""


def vocabulary_loss(
    call: Call,
    *,
    names: tuple[str, ...],
    groups: str,
) -> Any:
    """Loss of each token (fp32) from logits [..., V / TP] and labels; it is 0 where a label is negative.

    ``groups`` is the module that has the tensor-parallel group. Upstream's code handles calls with label smoothing
    (which Megatron applies to the columns of a rank, not to the vocabulary) and fp64 logits (whose loss is not fp32).
    """
    given = call_arguments.known(names, call)
    if given is None or given.get("label_smoothing") or str(given[NAMES[0]].dtype) == "torch.float64":
        return call.proceed()
    from ascend_adapt.kernels import cross_entropy

    group = given.get("tp_group")
    if group is None:
        group = importlib.import_module(groups).get_tensor_model_parallel_group()
    # Masked positions have negative labels. Upstream's loss is finite at these positions, and must stay finite.
    return cross_entropy(
        given["vocab_parallel_logits"],
        given["target"].clamp(min=-1),
        ignore_index=-1,
        reduction="none",
        group=group if group.size() > 1 else None,
    )
