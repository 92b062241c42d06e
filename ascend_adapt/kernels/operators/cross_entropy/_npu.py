"""Cross entropy with torch_npu's npu_cross_entropy_loss, within its documented limits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall
from ascend_adapt.npu_limits import cross_entropy as limits

CROSS_ENTROPY_LOSS = npu.Operator(
    "npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None, str reduction='mean', "
    "int ignore_index=-100, float label_smoothing=0.0, float lse_square_scale_for_zloss=0.0, "
    "bool return_zloss=False) -> (Tensor, Tensor, Tensor, Tensor)",
    ("input", "target", "reduction"),
)


def supports(call: CrossEntropyCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if call.group is not None:
        return "the vocabulary is split over ranks"
    if str(call.logits.dtype) != "torch.float32":
        return f"its loss would be in {str(call.logits.dtype).removeprefix('torch.')}"
    if call.logits.shape[0] not in limits.ROWS:
        return limits.SHAPES.unmet(False, f"input is {list(call.logits.shape)}")
    if call.label_smoothing:
        return "it has no gradient with label smoothing"
    return CROSS_ENTROPY_LOSS.difference()


def run(call: CrossEntropyCall) -> torch.Tensor:
    """Return the loss of each token, fp32 [T]."""
    # The operator does not support a negative ignore_index, so ignored tokens get a valid label and a loss of 0.
    ignored = call.labels == call.ignore_index
    labels = call.labels.masked_fill(ignored, 0)
    losses: torch.Tensor = CROSS_ENTROPY_LOSS(call.logits.contiguous(), labels, reduction="none")[0]
    return losses.masked_fill(ignored, 0.0)
