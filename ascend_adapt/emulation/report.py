"""Counts a rank's activity on the emulated device for the rehearsal report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ascend_adapt.emulation import finding, graphs, location
from ascend_adapt.errors import OperatorLimit


@dataclass
class Tally:
    """The counts of one process."""

    operators: Counter[str] = field(default_factory=Counter)
    """Calls of device kernels, by full name (``aten::add.Tensor``)."""
    on_the_host: Counter[str] = field(default_factory=Counter)
    """Calls of operators for which torch_npu has no kernel and falls back to the CPU, also on a real NPU."""
    missing: Counter[str] = field(default_factory=Counter)
    """Calls of operators that torch_npu has and the emulation lacks."""
    synchronisations: Counter[str] = field(default_factory=Counter)
    """Host-device syncs, by cause."""
    violations: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """Maps (operator, limit) to the number of violations and the details of the first violation."""
    steps: int = 0
    """Number of optimizer steps."""
    flops: int = 0
    """Floating-point operations of matrix products and attention; only counted at full size."""
    recomputed_flops: int = 0
    """Floating-point operations of the forward pass that the backward pass recomputes."""
    findings: dict[tuple[str, str, location.Line], list[Any]] = field(default_factory=dict)
    """Maps (kind, subject, line of the script) to a count, bytes, and the details of the first finding."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {
            "operators": dict(self.operators),
            "on_the_host": dict(self.on_the_host),
            "missing": dict(self.missing),
            "synchronisations": dict(self.synchronisations),
            "violations": [
                {"operator": operator, "limit": limit, "count": count, "detail": detail}
                for (operator, limit), (count, detail) in self.violations.items()
            ],
            "steps": self.steps,
            "findings": [
                {"kind": kind, "what": what, "file": line.file, "line": line.number}
                | {"count": count, "bytes": size, "detail": detail}
                for (kind, what, line), (count, size, detail) in self.findings.items()
            ],
        }


tally = Tally()


def operator(name: str) -> None:
    """Count one call of a device kernel."""
    tally.operators[name] += 1


def on_the_host(name: str) -> None:
    """Count one call of an operator for which torch_npu has no kernel."""
    tally.on_the_host[name] += 1
    found(finding.ON_THE_HOST, name)


def missing(name: str) -> None:
    """Count one call of an operator that the emulation lacks."""
    tally.missing[name] += 1
    found(finding.UNSUPPORTED, name)


def synchronisation(name: str, size: int = 0) -> None:
    """Count one host-device sync, caused by ``name``, for a copy of ``size`` bytes."""
    graphs.refuse_wait(name)
    tally.synchronisations[name] += 1
    found(finding.WAIT, finding.PRINT if location.is_inside("torch._tensor_str") else name, size=size)


def found(kind: str, what: str, detail: str = "", size: int = 0) -> None:
    """Count one finding at the line of the user's code that makes the call."""
    seen = tally.findings.setdefault((kind, what, location.of_caller()), [0, 0, detail])
    seen[0] += 1
    seen[1] += size


def operations(count: int) -> None:
    """Count floating-point operations; operations inside a backward pass with gradients enabled count as recomputed."""
    import torch

    tally.flops += count
    if torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1:
        tally.recomputed_flops += count


def step() -> None:
    """Count one step of an optimizer."""
    tally.steps += 1


def violation(operator: str, limit: str, detail: str) -> OperatorLimit:
    """Count a violation of a documented limit of an operator, and return the error to raise.

    Args:
        operator: the full name of the operator: ``npu::npu_swiglu``.
        limit: the limit, as worded in the report: ``input is contiguous``.
        detail: the observation: ``input of shape (4, 8) has strides (1, 4)``.
    """
    count, first = tally.violations.get((operator, limit), (0, detail))
    tally.violations[operator, limit] = (count + 1, first)
    found(finding.LIMIT, operator, f"{detail}, expected: {limit}")
    return OperatorLimit(f"{operator}: {detail}, expected: {limit} — a real NPU rejects this or returns a wrong result")
