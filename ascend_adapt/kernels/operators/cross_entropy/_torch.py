"""Cross entropy with torch's cross_entropy, without a copy of the logits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall


def supports(call: CrossEntropyCall) -> str:
    """Return "" or why torch's function does not compute this call in fp32 without a copy."""
    if call.group is not None:
        return "the vocabulary is split over ranks"
    if call.logits.dtype not in (torch.float32, torch.float64):
        return f"it would compute in {call.logits.dtype}"
    return ""


def run(call: CrossEntropyCall) -> torch.Tensor:
    """Return the loss of each token, fp32 [T]."""
    return torch.nn.functional.cross_entropy(
        call.logits,
        call.labels,
        ignore_index=call.ignore_index,
        label_smoothing=call.label_smoothing,
        reduction="none",
    )
