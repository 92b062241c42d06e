"""Findings: checks for known problems of a host. Each check reads plain facts; a finding has what, why, and what to do.

Facts about NPUs come from documents and issues of Huawei and PyTorch. They were not verified on hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ascend_adapt.diagnosis.findings import builds, cuda, emulated, imports, npu, shell, versions
from ascend_adapt.diagnosis.findings.machine import Finding, Machine, Ran

__all__ = ["Finding", "Machine", "Ran", "examine"]

Check = Callable[[Machine], Iterator[Finding]]
OF_A_DEVICE: dict[str, tuple[Check, ...]] = {
    "npu": npu.CHECKS,
    "cuda": cuda.CHECKS,
    "npu-emulated": emulated.CHECKS,
    "cpu": (),
}


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings of all checks, in the order versions, packages, device, shell, builds."""
    checks = (
        *versions.CHECKS,
        *imports.CHECKS,
        *OF_A_DEVICE[machine.device],
        *shell.CHECKS,
        *builds.CHECKS,
    )
    return tuple(finding for check in checks for finding in check(machine))
