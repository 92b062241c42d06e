"""Applier: applies and reverts patches of every kind in loaded modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ascend_adapt.errors import PatchConflict, PatchDrift
from ascend_adapt.patches.apply import bodies, third_party
from ascend_adapt.patches.apply.aliases import Swaps, chain
from ascend_adapt.patches.apply.applied_patch import Added, AppliedPatch, Entry, Layer, Rewritten
from ascend_adapt.patches.apply.replacement import is_function_like
from ascend_adapt.patches.apply.rewriting import rewritten_code
from ascend_adapt.patches.apply.slot import Slot
from ascend_adapt.patches.apply.third_party import ThirdPartyChange, ThirdPartyPatcher
from ascend_adapt.patches.declare.spec import NotNeeded, Patch
from ascend_adapt.patches.declare.target import Place, locate, locate_present


class Applier:
    """Applies patches. Each attribute has one slot, which several patches can share.

    ``others`` are third-party patchers that may have changed the same code before.
    """

    def __init__(self, others: Sequence[ThirdPartyPatcher] = ()) -> None:
        self._others = others
        self.slots: list[Slot] = []
        self.applied: list[AppliedPatch] = []

    def apply(self, patch: Patch, module: ModuleType) -> AppliedPatch:
        """Apply ``patch``, of any kind except provide, to ``module``.

        Raises:
            NotNeeded: the target does not have the fault.
            PatchDrift: the target is missing or has changed.
            PatchConflict: another patch excludes this one.
        """
        application = self._made(patch, module)
        self.applied.append(application)
        return application

    def undo(self, application: AppliedPatch) -> Swaps:
        """Revert a patch that is in place, and return the swaps for its aliases."""
        swaps = application.undo()
        self.applied.remove(application)
        self.follow(swaps)
        return swaps

    def follow(self, swaps: Swaps) -> None:
        """Update patches that refer to swapped objects, and add the resulting swaps to ``swaps``."""
        for slot in self.slots:
            chain(swaps, slot.follow(swaps))
        for application in self.applied:
            application.follow(swaps)

    def holders(self) -> list[Any]:
        """Return the containers in which this package keeps originals."""
        places = [one.place for one in self.applied] + [slot.place for slot in self.slots]
        pairs = [pair for one in self.applied for pair in one.swaps.values()]
        mine = [holder for slot in self.slots for holder in slot.holders()]
        return [*places, *map(vars, places), *pairs, *mine]

    def _made(self, patch: Patch, module: ModuleType) -> AppliedPatch:
        if patch.kind == "add":
            return Added(patch, module, locate(patch.target, module, lazily=False))
        place = locate_present(patch.target, module)
        slot = self._slot_at(place)
        # A constant in place of a function is drift, which the class for this kind of patch reports.
        if patch.unless is not None and (patch.function is None or is_function_like(slot.original)):
            reason = patch.unless(slot.original)
            if reason:
                raise NotNeeded(reason)
        other = third_party.find(_changed(patch, slot.original), self._others, patch.target.root)
        if other is not None:
            _give_way(patch, other)
        application = self._put(patch, module, place, slot)
        application.note = f"on top of {other}" if other is not None else ""
        return application

    def _put(self, patch: Patch, module: ModuleType, place: Place, slot: Slot) -> AppliedPatch:
        if patch.kind == "entry":
            return Entry(patch, module, place)
        if patch.kind == "rewrite":
            return self._rewritten(patch, module, place, slot.original)
        if patch.kind == "replace" and any(layer.kind == "replace" for layer in slot.layers):
            raise PatchConflict(f"{patch.target} is already replaced")
        if patch.bodies:
            bodies.check(patch, slot.original)
        return Layer(patch, module, place, slot)

    def _rewritten(self, patch: Patch, module: ModuleType, place: Place, original: Any) -> Rewritten:
        if place.inherited:
            base = next(cls for cls in place.owner.__mro__ if place.name in vars(cls))
            raise PatchDrift(f"{patch.target} is inherited from {base.__qualname__}, whose code all subclasses share")
        function, code = rewritten_code(patch, original)
        if any(isinstance(one, Rewritten) and one.function is function and one.holds() for one in self.applied):
            raise PatchConflict(f"{patch.target} is already rewritten")
        return Rewritten(patch, module, place, function, code)

    def _slot_at(self, place: Place) -> Slot:
        """Return the slot of a location. A module that re-exports a function shares the slot of the defining module."""
        self.slots = [slot for slot in self.slots if slot.layers]
        for slot in self.slots:
            is_same = slot.place.owner is place.owner and slot.place.name == place.name
            if is_same and slot.is_ours():
                return slot
        fresh = Slot(place)
        if not fresh.is_borrowed:
            for slot in self.slots:
                if (place.value is slot.head or place.value is slot.original) and not slot.is_borrowed:
                    return slot
        self.slots.append(fresh)
        return fresh


def _changed(patch: Patch, original: Any) -> Any:
    """Return the object that a patch changes: the attribute, or the value under its key."""
    if patch.kind == "entry":
        return original.get(patch.key) if isinstance(original, Mapping) else None
    return original


def _give_way(patch: Patch, other: ThirdPartyChange) -> None:
    """Reject a patch that would replace a third-party patcher's function. A wrap may be applied on top of it.

    Raises:
        NotNeeded: the patch only improves speed.
        PatchDrift: the patch would replace the function.
    """
    either = f"{other.patcher.leave_out} to use this patch"
    if patch.without == "slower":
        raise NotNeeded(f"{patch.target} is {other}, and a function is never patched twice — {either}")
    if patch.kind in ("replace", "entry"):
        raise PatchDrift(f"{patch.target} is {other}, expected upstream's function — {either}, or disable it")
