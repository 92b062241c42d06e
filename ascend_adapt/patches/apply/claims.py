"""Claims: which patches want to change what only one of them may."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ascend_adapt.errors import PatchConflict
from ascend_adapt.patches.apply.record import PatchRecord
from ascend_adapt.patches.judge.conflicts import conflict_text, exclusive_place


class Claims:
    """Who claims each exclusive place: all patches that would replace or rewrite it, or set the same key."""

    def __init__(self) -> None:
        self._claims: dict[str, list[PatchRecord]] = {}

    def claim(self, record: PatchRecord, is_admitted: Callable[[PatchRecord], bool]) -> None:
        """Take in a patch that has an exclusive place.

        Raises:
            PatchConflict: it is right for what is installed, and so is another one that claims the place.
        """
        others = self._others(record)
        if others and is_admitted(record):
            for other in filter(is_admitted, others):
                raise _conflict(other, record)
        if place := exclusive_place(record.patch):
            self._claims.setdefault(place, []).append(record)

    def refuse_second(self, record: PatchRecord) -> None:
        """Refuse what only now, with the versions known, excludes a patch that is applied.

        Raises:
            PatchConflict: there is such a patch.
        """
        for other in self._others(record):
            if any(application.is_current() for application in other.applications):
                raise _conflict(other, record)

    def forget(self, records: Collection[PatchRecord]) -> None:
        """Let go of what ``records`` claim."""
        for claims in self._claims.values():
            claims[:] = [record for record in claims if record not in records]

    def _others(self, record: PatchRecord) -> list[PatchRecord]:
        return [other for other in self._claims.get(exclusive_place(record.patch), ()) if other is not record]


def _conflict(one: PatchRecord, other: PatchRecord) -> PatchConflict:
    return PatchConflict(conflict_text(one.registered, other.registered))
