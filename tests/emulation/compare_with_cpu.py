"""Compares operators on the emulated device with the CPU, on the samples that torch's own tests use (op_db).

Run: ascend-run --device npu-emulated tests/emulation/compare_with_cpu.py [SAMPLES] (needs expecttest). Four samples of
each operator, values and gradients; differences are printed. Operators that draw random numbers are only called.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 4
DRAWS = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "empty",
    "rrelu",
)
REFUSED = "refused by the CPU"
CLOSE = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}


def main() -> None:
    warnings.filterwarnings("ignore")
    counts: Counter[str] = Counter()
    for operator in op_db:
        found = [compare(operator, sample) for sample in samples(operator)]
        counts.update({"": "agrees", REFUSED: REFUSED}.get(wrong, "differs") for wrong in found)
        for wrong in sorted(set(found) - {"", REFUSED}):
            print(f"{operator.name} {operator.variant_test_name}: {wrong}", flush=True)
    print(dict(counts))


def samples(operator: Any) -> Iterator[Any]:
    dtype = torch.float32 if torch.float32 in operator.supported_dtypes("cpu") else torch.int64
    wants_gradient = operator.supports_autograd and dtype.is_floating_point
    yield from islice(operator.sample_inputs("cpu", dtype, requires_grad=wants_gradient), SAMPLES)


def compare(operator: Any, sample: Any) -> str:
    """Return the first difference, or ""."""
    inputs = (sample.input, sample.args, sample.kwargs)
    there = tree_map(to_npu, (sample.input, sample.args, {**sample.kwargs}))
    if "device" in there[2]:
        there[2]["device"] = "npu"
    try:
        expected = operator(inputs[0], *inputs[1], **inputs[2])
    except Exception:
        return REFUSED
    try:
        found = operator(there[0], *there[1], **there[2])
        if any(word in operator.name for word in DRAWS):
            return ""
        pairs = list(zip(tensors(expected), tensors(found), strict=True))
        if not all(is_close(one, other) for one, other in pairs):
            return "values"
        return compare_gradients(pairs, inputs, there)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"


def compare_gradients(pairs: list[Any], inputs: Any, there: Any) -> str:
    if not pairs or not pairs[0][0].requires_grad or not pairs[0][0].is_floating_point():
        return ""
    for one in tensors(inputs):
        one.grad = None
    for one in pairs[0]:
        one.sum().backward()
    for one, other in zip(tensors(inputs), tensors(there), strict=True):
        if one.grad is not None and (other.grad is None or not is_close(one.grad, other.grad)):
            return "gradients"
    return ""


def tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def to_npu(value: Any) -> Any:
    return value.detach().to("npu").requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    wide = torch.complex128 if one.is_complex() else torch.float64
    return bool(torch.allclose(one.detach().to(wide), other.detach().cpu().to(wide), **CLOSE))


if __name__ == "__main__":
    main()
