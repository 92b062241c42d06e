"""Rebinding: makes aliases that were created before the patch refer to the patched object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import ModuleType

from ascend_adapt.patches.apply import aliases
from ascend_adapt.patches.apply.aliases import Swaps, chain
from ascend_adapt.patches.apply.applied_patch import AppliedPatch
from ascend_adapt.patches.apply.applier import Applier
from ascend_adapt.patches.apply.record import PatchRecord


def follow(applier: Applier, changed: Sequence[PatchRecord], imported: ModuleType | None) -> None:
    """Rebind aliases of the targets of the ``changed`` records.

    ``imported`` is the module whose import triggered this. If it is None, references that cannot be rebound are noted
    in the records.
    """
    applications = [record.applications[-1] for record in changed]
    swaps: Swaps = {}
    for application in applications:
        if application.is_borrowed:
            _follow_in_borrower(application)
        else:
            chain(swaps, application.swaps)
    applier.follow(swaps)
    if swaps:
        aliases.rebind(swaps, _possible_holders(swaps, imported), [one.module for one in applications])
        if imported is None:
            _note_out_of_reach(applier, changed, swaps)


def _possible_holders(swaps: Swaps, imported: ModuleType | None) -> list[ModuleType]:
    if imported is not None and all(getattr(old, "__module__", None) == imported.__name__ for old, _ in swaps.values()):
        # Only modules that entered sys.modules after this one can contain aliases of its functions.
        return aliases.modules_after(imported.__name__)
    return aliases.all_modules()


def _follow_in_borrower(application: AppliedPatch) -> None:
    """Rebind aliases of a function borrowed from another package, in the borrowing package only."""
    if isinstance(application.place.owner, ModuleType):
        root = f"{application.patch.target.root}."
        own = [module for module in aliases.all_modules() if f"{module.__name__}.".startswith(root)]
        aliases.rebind(application.swaps, own, [application.module])


def _note_out_of_reach(applier: Applier, changed: Iterable[PatchRecord], swaps: Swaps) -> None:
    held = aliases.out_of_reach(swaps, applier.holders())
    for record in changed:
        holders = [text for key in record.applications[-1].swaps for text in held.get(key, ())]
        if holders:
            kinds = ", ".join(f"{kind} ({n} times)" if n > 1 else kind for kind, n in Counter(holders).items())
            note = f"applied after the import of its target; {len(holders)} references keep the original: {kinds}"
            record.reason = f"{record.reason}; {note}" if record.reason else note
