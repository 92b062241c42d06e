"""Comparison of a backend with the reference: the largest errors of one call, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import BackendUnavailable
from ascend_adapt.kernels.operation import KernelCall, Operation

TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}
"""Allowed error by dtype: the largest difference divided by the largest value of the reference."""

_CANCELLED = 0.25
"""Smallest divisor of an error. Where terms of about 1 cancel, as in a query's gradient with few keys, the reference
consists of rounding errors only."""


@dataclass(frozen=True)
class Comparison:
    """Errors of a backend compared with the reference on one call."""

    kernel: str
    backend: str
    call: str
    errors: dict[str, float]
    """For each result and gradient, the largest difference divided by the reference's largest value, or NaN."""
    tolerances: dict[str, float]
    failed: str = ""
    """Message of the error that the backend raised."""

    @property
    def agrees(self) -> bool:
        """Whether every error is within the tolerance."""
        return not self.failed and all(error <= self.tolerances[name] for name, error in self.errors.items())

    def __str__(self) -> str:
        """Return a one-line summary."""
        if self.failed:
            return f"{self.kernel}: {self.backend} failed on {self.call}: {self.failed}"
        worst = max(self.errors, key=lambda name: _or_infinite(self.errors[name]) / self.tolerances[name])
        difference = f"{worst} differs by {self.errors[worst]:.2g}, {self.tolerances[worst]:.2g} is allowed"
        return f"{self.kernel}: {self.backend} on {self.call}: {difference}"


def compare(kernel: Operation, backend: str, call: KernelCall, seed: int = 0) -> Comparison:
    """Compare ``backend`` with the reference on ``call``, without changing the call's tensors.

    Dropout is switched off, because two backends never drop the same elements.

    Raises:
        BackendUnavailable: the backend does not exist, or does not support the call.
    """
    if getattr(call, "dropout_p", 0.0):
        call = replace(call, dropout_p=0.0)  # type: ignore[type-var]
    implementation = kernel.backend(backend).implementation()
    if reason := implementation.supports(call):
        raise BackendUnavailable(
            f"kernel {kernel.name!r}: backend {backend!r} does not support {call.describe()}: {reason}"
        )
    right = _results(kernel.backend("reference").implementation(), call, seed)
    try:
        found = _results(implementation, call, seed)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return Comparison(kernel.name, backend, call.describe(), {}, {}, " ".join(str(error).split())[:300])
    errors = {name: _error(found[name], right[name]) for name in right}
    tolerances = {name: TOLERANCES[str(tensor.dtype).removeprefix("torch.")] for name, tensor in right.items()}
    return Comparison(kernel.name, backend, call.describe(), errors, tolerances)


def _results(implementation: Any, call: KernelCall, seed: int) -> dict[str, Any]:
    """Return every result and gradient by name, or the tensors that the call changed in place."""
    import torch

    copy = type(call)(**{name: _copied(value) for name, value in vars(call).items()})
    result = implementation.run(copy)
    if result is None:
        return {
            name: tensor
            for name, tensor in _tensors(copy)
            if tensor.dtype.is_floating_point and name.partition("[")[0] not in copy.overwritten
        }
    results = result if isinstance(result, tuple) else (result,)
    names = [f"result {number}" for number in range(1, len(results) + 1)] if len(results) > 1 else ["result"]
    named = {name: each.detach() for name, each in zip(names, results, strict=True)}
    if results[0].requires_grad:
        generator = torch.Generator().manual_seed(seed)
        cotangents = [torch.randn(one.shape, generator=generator).to(one.device, one.dtype) for one in results]
        torch.autograd.backward(results, cotangents)
        named.update({f"gradient of {name}": tensor.grad for name, tensor in _tensors(copy) if tensor.requires_grad})
    return named


def _copied(value: Any) -> Any:
    if hasattr(value, "requires_grad"):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return tuple(_copied(each) for each in value) if isinstance(value, tuple) else value


def _tensors(call: KernelCall) -> list[tuple[str, Any]]:
    found = []
    for name, value in vars(call).items():
        if hasattr(value, "requires_grad"):
            found.append((name, value))
        elif isinstance(value, tuple):
            found += [(f"{name}[{index}]", each) for index, each in enumerate(value)]
    return found


def _error(found: Any, right: Any) -> float:
    if found is None or found.shape != right.shape or found.dtype != right.dtype:
        return float("nan")
    if not right.numel():
        return 0.0
    mine, true = found.cpu().double(), right.cpu().double()  # an NPU has no fp64
    return float((mine - true).abs().max() / true.abs().max().clamp(min=_CANCELLED))


def _or_infinite(error: float) -> float:
    return error if error == error else float("inf")
