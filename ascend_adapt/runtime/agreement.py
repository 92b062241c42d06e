"""Rank agreement: the ranks of a job diverge silently unless all run the same versions and patches."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_adapt import probe
from ascend_adapt.patches.declare.outcome import Outcome, Status

# Moments at which a rank reports its facts. Between them the script may add plugins, paths and modules, on each rank at
# a different time, so only facts of the same moment are compared.
START, FIRST_APPLY, END = "start", "first apply", "end"
_ALWAYS = ("ascend_adapt", "torch", "torch_npu", "numpy")
# Possible states of an armed patch after the import of its target.
_LATER = ("applied", "not_needed", "drifted", "failed", "lost")
# State of an armed patch that the gate cannot decide before the import.
_UNDECIDED = "undecided"
_KERNEL = "kernel "
_MISSING, _NOT_INSTALLED, _DISABLED = "missing", "not installed", "disabled"


@dataclass(frozen=True)
class Difference:
    """A fact that differs between a rank and the lowest rank."""

    fact: str
    rank: int
    value: str
    first: int
    there: str

    def may_be_to_come(self) -> bool:
        """Return whether the difference may still disappear: a rank lacks the patch or package so far, or disabled it.

        Rank 0, which downloads for all ranks, applies patches earlier.
        """
        return bool({self.value, self.there} & {_MISSING, _NOT_INSTALLED, _DISABLED})

    def __str__(self) -> str:
        return f"rank {self.rank} differs from rank {self.first}: {self.fact} is {self.value} instead of {self.there}"


def facts(status: Status, backends: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions, device, patch states and kernel backends of this process, by name.

    Args:
        status: the status of this process.
        backends: kind of kernel call -> the backend chosen so far.
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
    """Return the patch states, by the names that their facts have."""
    return {
        f"patch {one.plugin}.{one.patch}": _UNDECIDED if one.state == "armed" and one.reason else one.state
        for one in outcomes
    }


def digest(facts: Mapping[str, str]) -> str:
    """Return a short digest of facts, in which an armed patch equals its possible later states."""
    settled = {
        name: "armed" if value in (*_LATER, _UNDECIDED) else value
        for name, value in facts.items()
        if not name.startswith(_KERNEL)
    }
    return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()[:16]


def met(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two ranks ran at the same time, according to their status files.

    A shell script may start several programs one after another, each with other ranks, packages and settings.
    """
    return all(
        first.get("until") is None or later.get("since", 0.0) <= first["until"]
        for first, later in ((one, other), (other, one))
    )


def differences(ranks: Mapping[int, Mapping[str, Mapping[str, str]]]) -> list[Difference]:
    """Return the latest differences of each rank from the lowest rank.

    Args:
        ranks: rank -> moment -> facts, without the moments that a rank has not reached.
    """
    found: dict[tuple[int, str], Difference] = {}
    for moment in (START, FIRST_APPLY, END):
        at_once = {rank: moments[moment] for rank, moments in ranks.items() if moment in moments}
        differing = (one for one in _differences(at_once) if moment != FIRST_APPLY or not one.may_be_to_come())
        found.update({(one.rank, one.fact): one for one in differing})
    return list(found.values())


def _differences(ranks: Mapping[int, Mapping[str, str]]) -> list[Difference]:
    if not ranks:
        return []
    first = min(ranks)
    return [
        Difference(fact, rank, value, first, there)
        for rank in sorted(ranks)
        for fact in sorted({*ranks[rank], *ranks[first]})
        # Pipeline stages make different calls, so backends are compared for equal calls only.
        if not (fact.startswith(_KERNEL) and (fact not in ranks[rank] or fact not in ranks[first]))
        and not _agree(
            value := ranks[rank].get(fact, _MISSING),
            there := ranks[first].get(fact, _MISSING),
        )
    ]


def _agree(one: str, other: str) -> bool:
    if _UNDECIDED in (one, other):
        return True
    return one == other or ("armed" in (one, other) and (one in _LATER or other in _LATER))
