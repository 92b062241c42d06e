"""Differences between two runs: settings, versions, patches and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_adapt.diagnosis.status_report import full_name
from ascend_adapt.report.run import Run


@dataclass(frozen=True)
class Difference:
    """One value that differs between two runs."""

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class Compared:
    """One kind of fact in two runs: the differences, and the number of equal facts."""

    title: str
    differences: tuple[Difference, ...]
    equal: int


def compare(first: Run, second: Run) -> list[Compared]:
    """Return the differences, without kinds of facts that one of the runs lacks."""
    kinds = (
        ("Settings", "not set", first.settings, second.settings),
        ("Versions", "not installed", first.versions, second.versions),
        ("Patches", "not applied", _patches(first), _patches(second)),
        ("Kernels", "not used", _kernels(first), _kernels(second)),
    )
    return [_compared(*kind) for kind in kinds if kind[2] and kind[3]]


def _compared(title: str, missing: str, first: Mapping[str, str], second: Mapping[str, str]) -> Compared:
    names = list(dict.fromkeys((*first, *second)))
    values = [Difference(name, first.get(name, missing), second.get(name, missing)) for name in names]
    different = tuple(one for one in values if one.first != one.second)
    return Compared(title, different, len(values) - len(different))


def _patches(run: Run) -> dict[str, str]:
    report = run.patches
    return {full_name(one): one.state for one in (*report.applying, *report.bad)} if report is not None else {}


def _kernels(run: Run) -> dict[str, str]:
    backends: dict[str, dict[str, None]] = {}
    for one in run.kernels:
        backends.setdefault(one.kernel, {})[one.backend] = None
    return {kernel: ", ".join(sorted(names)) for kernel, names in backends.items()}
