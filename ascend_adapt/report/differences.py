"""Differences between two runs: settings, versions, patches and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_adapt.report.run import Run

MISSING = "(not set)"


@dataclass(frozen=True)
class Difference:
    """One value that differs between two runs."""

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class Compared:
    """One kind of facts of two runs: what differs, and how many are equal."""

    title: str
    differences: tuple[Difference, ...]
    equal: int


def compare(first: Run, second: Run) -> list[Compared]:
    """Return what differs; a kind that one of the runs does not have is left out."""
    kinds = {
        "Settings": (first.settings, second.settings),
        "Versions": (first.versions, second.versions),
        "Patches": (_patches(first), _patches(second)),
        "Kernels": (_kernels(first), _kernels(second)),
    }
    return [_compared(title, *both) for title, both in kinds.items() if all(both)]


def _compared(title: str, first: Mapping[str, str], second: Mapping[str, str]) -> Compared:
    names = list(dict.fromkeys((*first, *second)))
    values = [Difference(name, first.get(name, MISSING), second.get(name, MISSING)) for name in names]
    different = tuple(one for one in values if one.first != one.second)
    return Compared(title, different, len(values) - len(different))


def _patches(run: Run) -> dict[str, str]:
    # "armed" is a target that was not imported: nothing that this run could differ by.
    return {f"{one.plugin}.{one.patch}": one.state for one in run.outcomes if one.state != "armed"}


def _kernels(run: Run) -> dict[str, str]:
    backends: dict[str, dict[str, None]] = {}
    for one in run.kernels:
        backends.setdefault(one.kernel, {})[one.backend] = None
    return {kernel: ", ".join(sorted(names)) for kernel, names in backends.items()}
