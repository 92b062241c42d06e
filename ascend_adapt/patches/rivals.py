"""Rivals: patches that change what only one patch may change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ascend_adapt.errors import PatchConflict
from ascend_adapt.patches.record import Record
from ascend_adapt.patches.spec import Patch


class Rivals:
    """Who claims each exclusive place: all patches that would replace or rewrite it, or set the same key."""

    def __init__(self) -> None:
        self._claims: dict[str, list[Record]] = {}

    def claim(self, record: Record) -> None:
        """Take in a patch, if its place is exclusive."""
        place = _exclusive_place(record.patch)
        if place:
            self._claims.setdefault(place, []).append(record)

    def of(self, record: Record) -> Sequence[Record]:
        """Return the others that claim the place of ``record``."""
        return [other for other in self._claims.get(_exclusive_place(record.patch), ()) if other is not record]

    def forget(self, records: Collection[Record]) -> None:
        """Let go of what ``records`` claim."""
        for claims in self._claims.values():
            claims[:] = [record for record in claims if record not in records]


def conflict(one: Record, other: Record) -> PatchConflict:
    """Return the error that names two rivals."""
    place = _exclusive_place(one.patch)
    return PatchConflict(
        f"{place}: {one.registered} and {other.registered} both change it, expected one of them — disable the other"
    )


def _exclusive_place(patch: Patch) -> str:
    """What only one patch may change, or ``""``."""
    if patch.kind == "entry":
        return f"{patch.target}[{patch.key!r}]"
    return str(patch.target) if patch.kind in ("replace", "rewrite") else ""
