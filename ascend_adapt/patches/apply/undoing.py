"""Undoing what is in force, newest first; what somebody else has changed since is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from ascend_adapt.patches.apply import aliases
from ascend_adapt.patches.apply.applier import Applier
from ascend_adapt.patches.apply.providing import ProvidingFinder
from ascend_adapt.patches.apply.record import Record
from ascend_adapt.patches.apply.swaps import Swaps, chain


def undo(records: Sequence[Record], applier: Applier, finder: ProvidingFinder) -> None:
    """Take back whatever of ``records`` is in force, and rebind the copies others took of it."""
    swaps: Swaps = {}
    homes: list[ModuleType] = []
    for record in reversed(records):
        patch = record.patch
        if patch.kind == "provide" and finder.offers(record.registered):
            finder.withdraw(record.registered)
            record.set("reverted", "")
        for application in reversed(record.applications):
            if not application.holds():
                record.set("lost", f"{patch.target} was changed by somebody else after apply; left alone")
                continue
            if application.is_below():
                record.set(
                    "lost", f"left alone: it stays in force below {application.replaced_by()}, which came after it"
                )
                continue
            chain(swaps, applier.undo(application))
            homes.append(application.module)
            record.set("reverted", "" if patch.reversible else "what it did cannot be undone")
        record.applications.clear()
    if swaps:
        aliases.rebind(swaps, aliases.all_modules(), homes)
