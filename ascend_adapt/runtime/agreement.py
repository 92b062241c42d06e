"""What the ranks of a job must have alike: a rank that runs other versions or patches diverges without a word."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_adapt import probe
from ascend_adapt.patches.declare.outcome import Outcome, Status

# When a rank tells its facts. Between them the script runs, which adds plugins, paths and modules: alike on each rank,
# but not at the same time, so only what was told at the same moment is compared.
START, FIRST_APPLY, END = "start", "first apply", "end"
_ALWAYS = ("ascend_adapt", "torch", "torch_npu", "numpy")
# What an armed patch may yet become, once its target is imported.
_LATER = ("applied", "not_needed", "drifted", "failed", "lost")
# An armed patch of which even the gate cannot tell more before the import.
_UNDECIDED = "undecided"
_KERNEL = "kernel "
_MISSING, _NOT_INSTALLED, _DISABLED = "missing", "not installed", "disabled"


@dataclass(frozen=True)
class Difference:
    """One fact in which a rank differs from the first one."""

    fact: str
    rank: int
    value: str
    first: int
    there: str

    def may_be_to_come(self) -> bool:
        """Return whether one rank has no such patch or package, or has left it out: what its script still has to do.

        Rank 0, which downloads for all, applies earlier.
        """
        return bool({self.value, self.there} & {_MISSING, _NOT_INSTALLED, _DISABLED})

    def __str__(self) -> str:
        return f"rank {self.rank} differs from rank {self.first}: {self.fact} is {self.value}, there {self.there}"


def facts(status: Status, backends: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return versions, device and patch states of this process, by name; and which backend computes each kind of call.

    Args:
        status: of this process.
        backends: kind of call of a kernel -> the backend chosen for it so far.
    """
    roots = {outcome.target.partition(":")[0].partition(".")[0] for outcome in status.outcomes}
    versions = {name: probe.distribution_version(name) or _NOT_INSTALLED for name in {*_ALWAYS, *roots}}
    chosen = {f"{_KERNEL}{call}": backend for call, backend in (backends or {}).items()}
    return {
        "python": platform.python_version(),
        "device": status.device,
        **versions,
        **states(status.outcomes),
        **chosen,
    }


def states(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return the patch states among the facts."""
    return {
        f"patch {one.plugin}.{one.patch}": _UNDECIDED if one.state == "armed" and one.reason else one.state
        for one in outcomes
    }


def digest(told: Mapping[str, str]) -> str:
    """Return a short digest of facts; an armed patch counts as what it may yet become."""
    settled = {
        name: "armed" if value in (*_LATER, _UNDECIDED) else value
        for name, value in told.items()
        if not name.startswith(_KERNEL)
    }
    return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()[:16]


def met(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two ranks, by their status files, lived at the same time.

    A shell script may start one program after another, each with ranks, packages and settings of its own.
    """
    return all(
        first.get("until") is None or later.get("since", 0.0) <= first["until"]
        for first, later in ((one, other), (other, one))
    )


def differences(told: Mapping[int, Mapping[str, Mapping[str, str]]]) -> list[Difference]:
    """Return every fact in which a rank differs from the lowest one, by rank, as it was last told.

    Args:
        told: rank -> moment -> facts; a rank that has not come to a moment, or was killed before, has none of it.
    """
    found: dict[tuple[int, str], Difference] = {}
    for moment in (START, FIRST_APPLY, END):
        at_once = {rank: moments[moment] for rank, moments in told.items() if moment in moments}
        differing = (one for one in _differences(at_once) if moment != FIRST_APPLY or not one.may_be_to_come())
        found.update({(one.rank, one.fact): one for one in differing})
    return list(found.values())


def _differences(told: Mapping[int, Mapping[str, str]]) -> list[Difference]:
    if not told:
        return []
    first = min(told)
    return [
        Difference(fact, rank, value, first, there)
        for rank in sorted(told)
        for fact in sorted({*told[rank], *told[first]})
        # A pipeline stage meets other calls than the next: only the same call must have the same backend.
        if not (fact.startswith(_KERNEL) and (fact not in told[rank] or fact not in told[first]))
        and not _agree(
            value := told[rank].get(fact, _MISSING),
            there := told[first].get(fact, _MISSING),
        )
    ]


def _agree(one: str, other: str) -> bool:
    if _UNDECIDED in (one, other):
        return True
    return one == other or ("armed" in (one, other) and (one in _LATER or other in _LATER))
