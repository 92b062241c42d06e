"""Versions for tests, inside and just outside the range of a requirement."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import Version

from ascend_adapt.patches.judge import gate


@dataclass(frozen=True)
class Around:
    """A version inside the range, and the nearest versions outside its bounds."""

    inside: str
    below: str | None
    above: str | None


def around(requirement: Requirement) -> Around:
    """Return versions inside and just outside the range of ``requirement``.

    Raises:
        ValueError: the range contains no version near its bounds.
    """
    candidates = {Version("0.dev0"), Version("1"), Version("9999")}
    for clause in requirement.specifier:
        base = Version(clause.version.removesuffix(".*"))
        *higher, last = base.release
        candidates |= {base, Version(f"{base}.1"), Version(".".join(map(str, (*higher, last + 1))))}
        if last:
            candidates.add(Version(".".join(map(str, (*higher, last - 1, 9999)))))
        if not (base.is_devrelease or base.is_postrelease or base.local):
            candidates.add(Version(f"{base.base_version}.dev0"))
    admitted = [one for one in candidates if gate.admits(requirement, one)]
    if not admitted:
        raise ValueError(f"{requirement}: admits no version near its bounds")
    lowest, highest = min(admitted), max(admitted)
    below = [one for one in candidates if one < lowest]
    above = [one for one in candidates if one > highest]
    releases = [one for one in admitted if not one.is_prerelease] or admitted
    return Around(str(min(releases)), str(max(below)) if below else None, str(min(above)) if above else None)
