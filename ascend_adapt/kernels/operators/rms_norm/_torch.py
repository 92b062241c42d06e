"""RMS norm with torch's rms_norm."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.rms_norm import RmsNormCall


def supports(call: RmsNormCall) -> str:
    """Return "" or why torch's rms_norm differs from the contract."""
    if call.weight is not None and call.weight.dtype != call.x.dtype:
        return f"x is {call.x.dtype}, weight {call.weight.dtype}"
    return ""


def run(call: RmsNormCall) -> torch.Tensor:
    """Return the normalised tensor."""
    return torch.nn.functional.rms_norm(call.x, call.x.shape[-1:], call.weight, call.eps)
