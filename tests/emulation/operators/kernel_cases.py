"""The NPU backend of each kernel beside its reference, on the emulated device: both by torch_npu's real operators."""

from __future__ import annotations

import torch
from emulation.operators.case import Check

from ascend_adapt.errors import BackendUnavailable
from ascend_adapt.kernels.comparison import compare
from ascend_adapt.kernels.dispatch import kernels
from ascend_adapt.kernels.samples import samples

NOT_SERVED = {
    ("masked_softmax", "causal"): "-10000",
    ("masked_softmax", "mask"): "-10000",
    ("gelu", "tanh of a sum with a bias"): "bias",
    ("cross_entropy", "of logits", torch.bfloat16): "bfloat16",
    ("cross_entropy", "of logits", torch.float16): "float16",
}
"""Calls that the backend leaves to others, and a word of its reason."""


def case(kernel, kind, dtype):
    def check():
        (call,) = (call for name, of, call in samples(torch.device("npu:0"), dtype) if (name, of) == (kernel, kind))
        reason = NOT_SERVED.get((kernel, kind)) or NOT_SERVED.get((kernel, kind, dtype))
        try:
            compared = compare(kernels()[kernel], "npu", call)
        except BackendUnavailable as error:
            return "" if reason and reason in str(error) else str(error)
        if reason:
            return f"served, though it is in NOT_SERVED: {compared}"
        return "" if compared.agrees else str(compared)

    return Check(f"{kernel} {kind} {dtype}", check)


def table():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for kernel, kind, _ in samples(torch.device("cpu"), dtype):
            if any(backend.name == "npu" for backend in kernels()[kernel].backends):
                yield case(kernel, kind, dtype)


CASES = list(table())
