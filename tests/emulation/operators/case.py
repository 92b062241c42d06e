"""Cases of the operator tables, and how they run on the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from error_bounds import ELEMENTARY, relative


@dataclass
class Gradient:
    """An operator on npu tensors, compared with its definition in float64, forward and backward."""

    name: str
    operator: Callable[..., Any]
    """Takes the tensors of ``inputs`` on the npu; returns a tensor, or (tensor, what the oracle gets as ``extra``)."""
    oracle: Callable[..., Any]
    """Takes the same tensors in float64 on the CPU, with gradients by torch's autograd."""
    inputs: dict[str, torch.Tensor]
    node: str = ""
    """The autograd node of torch_npu that produced the result."""
    constant: frozenset[str] = field(default_factory=frozenset)
    """Floating inputs that do not require grad."""


@dataclass
class Misuse:
    """A call that a real NPU refuses, or for which it returns a wrong result."""

    name: str
    call: Callable[[], Any]
    operator: str
    limit: Any


def run_gradient(case: Gradient) -> str:
    """Return "" if the result and every gradient are the oracle's, else the first difference."""
    on_npu, on_cpu = {}, {}
    for name, value in case.inputs.items():
        asks = value.is_floating_point() and name not in case.constant
        on_npu[name] = value.npu().requires_grad_(asks)
        on_cpu[name] = (value.double() if value.is_floating_point() else value).requires_grad_(asks)
    result = case.operator(**on_npu)
    extra = {}
    if isinstance(result, tuple):
        result, extra = result[0], {"extra": result[1]}
    node = result.grad_fn.name() if result.grad_fn is not None else "nothing"
    if case.node and node != case.node:
        return f"autograd: {node} produced the result, expected {case.node}"
    wanted = case.oracle(**on_cpu, **extra)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    result.backward(weights.to(result.dtype).npu())
    wanted.backward(weights.to(result.dtype).double())
    # Sums run over the last axis, or over all rows where a factor is broadcast.
    sums = max(max(value.shape[-1], value.numel() // value.shape[-1]) for value in case.inputs.values())
    pairs = {"result": (result.detach(), wanted.detach())}
    pairs |= {name: (on_npu[name].grad, on_cpu[name].grad) for name in on_npu if on_npu[name].requires_grad}
    for name, (found, expected) in pairs.items():
        problem = difference(found, expected, sums)
        if problem:
            return f"{name}: {problem}"
    return ""


def difference(found: torch.Tensor | None, expected: torch.Tensor | None, sums: int) -> str:
    """Return "" if the values are equal up to the rounding of ``sums`` terms in fp32 and of the result's dtype."""
    if found is None or expected is None:
        return "" if found is expected else f"found {found}, expected {expected}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    error = (found.cpu().double() - expected).abs().max().item()
    # Terms of a few times the largest number cancel; forward and backward round their results to the tensors' dtype.
    rounded = relative((sums + 4 * ELEMENTARY, torch.float32, 4.0), (4, found.dtype))
    allowed = rounded * max(1.0, expected.abs().max().item())
    return "" if error <= allowed else f"{found.dtype} differs by {error:.3g}, expected at most {allowed:.3g}"


@dataclass
class Check:
    """Anything else: ``check`` asserts, or returns what is wrong."""

    name: str
    check: Callable[[], str | None]
