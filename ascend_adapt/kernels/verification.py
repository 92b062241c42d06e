"""Verification of a backend against the reference, on a small call before its first use for a class of shapes."""

from __future__ import annotations

from typing import Any

from ascend_adapt.errors import KernelError
from ascend_adapt.kernels import run_record, tracing, trial
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.operation import Backend, KernelCall, Operation

_DEVICES = ("cpu", "cuda", "npu")
_known: dict[tuple[str, str, str, str], str] = {}


def is_possible(call: KernelCall) -> bool:
    """Return whether values can be computed now: the call is not traced, transformed or captured, and has data."""
    import torch

    tensor = call.tensor()
    if tensor.device.type not in _DEVICES or not tracing.has_values(tensor):
        return False  # in a traced or transformed call, sizes may be tensors, and drawing random values would be traced
    return not (tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def disagreement(kernel: Operation, backend: Backend, call: KernelCall) -> str:
    """Return "" if the backend agrees with the reference on a small call like ``call``, else the difference.

    Raises:
        KernelError: another rank of this job got the opposite result.
    """
    if backend.name == "reference" or not is_possible(call):
        return ""
    card = run_record.card(call.tensor())
    key = (kernel.name, backend.name, call.describe(rounded=True), card)
    if key not in _known:
        small = call.small()
        if small is None or backend.implementation().supports(small):
            return ""
        compared = trial.aside(lambda: compare(kernel, backend.name, small), call.tensor().device)
        _known[key] = _settle(key, "" if compared.agrees else str(compared))
    return _known[key]


def _settle(key: tuple[str, str, str, str], mine: str) -> str:
    """Return this rank's result. Raise an error if another rank got the opposite result."""
    import torch

    names = ("kernel", "backend", "call", "card")
    subject: dict[str, Any] = {**dict(zip(names, key, strict=True)), "torch": torch.__version__}
    held = run_record.hold({**subject, "compared with": "reference"}, {"disagreement": mine})
    theirs = str(held.get("disagreement", mine))
    if bool(theirs) != bool(mine):
        raise KernelError(
            f"kernel {key[0]!r}: backend {key[1]!r} agrees with the reference on one rank and not on another "
            f"({mine or theirs}) — check that device, or set ASCEND_ADAPT_KERNELS={key[0]}:reference"
        )
    return mine
