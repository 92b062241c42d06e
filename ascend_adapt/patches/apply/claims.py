"""Claims: records which patches change the locations that only one patch may change."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ascend_adapt.errors import PatchConflict
from ascend_adapt.patches.apply.record import PatchRecord
from ascend_adapt.patches.judge.conflicts import conflict_text, exclusive_place


class Claims:
    """The claims on each exclusive place: the patches that replace or rewrite it, or set the same key."""

    def __init__(self) -> None:
        self._claims: dict[str, list[PatchRecord]] = {}

    def claim(self, record: PatchRecord, is_admitted: Callable[[PatchRecord], bool]) -> None:
        """Register the claim of a patch.

        Raises:
            PatchConflict: this and another admitted patch claim the same place.
        """
        others = self._others(record)
        if others and is_admitted(record):
            for other in filter(is_admitted, others):
                raise _conflict(other, record)
        if place := exclusive_place(record.patch):
            self._claims.setdefault(place, []).append(record)

    def refuse_second(self, record: PatchRecord) -> None:
        """Reject a patch that conflicts with an applied patch, since versions may become known only at import.

        Raises:
            PatchConflict: another patch is applied at the same place.
        """
        for other in self._others(record):
            if any(application.is_current() for application in other.applications):
                raise _conflict(other, record)

    def forget(self, records: Collection[PatchRecord]) -> None:
        """Forget the claims of ``records``."""
        for claims in self._claims.values():
            claims[:] = [record for record in claims if record not in records]

    def _others(self, record: PatchRecord) -> list[PatchRecord]:
        return [other for other in self._claims.get(exclusive_place(record.patch), ()) if other is not record]


def _conflict(one: PatchRecord, other: PatchRecord) -> PatchConflict:
    return PatchConflict(conflict_text(one.registered, other.registered))
