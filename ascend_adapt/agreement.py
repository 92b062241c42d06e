"""What the ranks of a job must have alike: a rank that runs other versions or patches diverges without a word."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping

from ascend_adapt import probe
from ascend_adapt.patches.outcome import Status

_ALWAYS = ("ascend_adapt", "torch", "torch_npu", "numpy")
# What an armed patch may yet become, once its target is imported.
_LATER = ("applied", "not_needed", "drifted", "failed", "lost")
# An armed patch of which even the gate cannot tell more before the import.
_UNDECIDED = "undecided"


def facts(status: Status) -> dict[str, str]:
    """Return versions, device and patch states of this process, by name."""
    roots = {outcome.target.partition(":")[0].partition(".")[0] for outcome in status.outcomes}
    versions = {name: probe.distribution_version(name) or "not installed" for name in {*_ALWAYS, *roots}}
    states = {
        f"patch {one.plugin}.{one.patch}": _UNDECIDED if one.state == "armed" and one.reason else one.state
        for one in status.outcomes
    }
    return {"python": platform.python_version(), "device": status.device, **versions, **states}


def digest(told: Mapping[str, str]) -> str:
    """Return a short digest of facts; an armed patch counts as what it may yet become."""
    settled = {name: "armed" if value in (*_LATER, _UNDECIDED) else value for name, value in told.items()}
    return hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()[:16]


def differences(told: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return one sentence for each fact in which a rank differs from the lowest one."""
    if not told:
        return []
    first = min(told)
    return [
        f"rank {rank} differs from rank {first}: {name} is {told[rank].get(name, 'missing')}, "
        f"there {told[first].get(name, 'missing')}"
        for rank in sorted(told)
        for name in sorted({*told[rank], *told[first]})
        if not _agree(told[rank].get(name, "missing"), told[first].get(name, "missing"))
    ]


def _agree(one: str, other: str) -> bool:
    if _UNDECIDED in (one, other):
        return True
    return one == other or ("armed" in (one, other) and (one in _LATER or other in _LATER))
