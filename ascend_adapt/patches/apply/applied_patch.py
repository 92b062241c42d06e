"""Applied patches: each kind applies a patch at one location, recognises it later, and undoes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.apply import bodies, third_party
from ascend_adapt.patches.apply.aliases import Swaps, swapped
from ascend_adapt.patches.apply.replacement import underlying
from ascend_adapt.patches.apply.rewriting import function_behind
from ascend_adapt.patches.apply.slot import Slot
from ascend_adapt.patches.declare.spec import NotNeeded, Patch
from ascend_adapt.patches.declare.target import MISSING, Place, Target, locate, look_up, standing


@dataclass(eq=False)
class AppliedPatch(ABC):
    """A patch applied at one place. ``swaps`` lists the objects whose aliases must be rebound."""

    patch: Patch
    module: ModuleType
    place: Place
    swaps: Swaps = field(default_factory=dict, init=False)
    is_borrowed: bool = field(default=False, init=False)
    note: str = field(default="", init=False)
    """Details for the user on how the patch was applied."""
    values: list[Any] = field(default_factory=list, init=False)
    """The object that the patch set, and the object that replaced it when another patch got the same target."""

    @abstractmethod
    def holds(self) -> bool:
        """Return whether the patch is still in place."""

    @abstractmethod
    def undo(self) -> Swaps:
        """Restore the original object and return the swaps for its aliases."""

    def is_below(self) -> bool:
        """Return whether other code has wrapped the patched object since, which prevents a revert."""
        return False

    def replaced_by(self) -> str:
        """Return the name of the function that replaced the patch, or "" if unknown."""
        try:
            value = self._standing(self._located())
        except PatchDrift:
            return ""
        return third_party.describe(value) if callable(value) and not self._is_mine(value) else ""

    def _standing(self, place: Place) -> Any:
        return place.value

    def follow(self, swaps: Swaps) -> None:
        """Update references to objects that other patches have replaced."""
        self.values = [*self.values[:1], *(swapped(value, swaps) for value in self.values[-1:])]

    def _is_mine(self, value: Any) -> bool:
        return any(value is mine for mine in self.values)

    def is_current(self) -> bool:
        """Return whether the patch is in place in the current object of its target. A reload creates new objects."""
        try:
            return self.holds() and self._is_at(self._located())
        except PatchDrift:
            return False

    def _located(self) -> Place:
        return locate(self.patch.target, self.module, lazily=self.patch.kind != "add")

    def _is_at(self, place: Place) -> bool:
        owner, ours = place.owner, self.place.owner
        if owner is ours or not (isinstance(owner, type) and isinstance(ours, type) and issubclass(owner, ours)):
            return owner is ours
        # deepspeed_npu replaces a class with a subclass, which inherits the patched attribute.
        return look_up(owner, place.name)[0] is look_up(ours, self.place.name)[0]


@dataclass(eq=False)
class Layer(AppliedPatch):
    """Applied wrap or replace: one layer of a slot."""

    slot: Slot

    def __post_init__(self) -> None:
        self.swaps, self.is_borrowed = self.slot.put(self.patch), self.slot.is_borrowed

    def holds(self) -> bool:
        if not any(layer is self.patch for layer in self.slot.layers):
            return False
        if not self.slot.is_ours():
            return self.is_below()
        # A module that shares another module's slot may not have the latest head of the slot yet.
        return self._is_mine(standing(self.place.owner, self.place.name))

    def _is_mine(self, value: Any) -> bool:
        return any(value is head for head in self.slot.heads)

    def is_below(self) -> bool:
        value = standing(self.place.owner, self.place.name)
        return not self.slot.is_ours() and third_party.calls(value, underlying(self.slot.head))

    def undo(self) -> Swaps:
        return self.slot.take(self.patch)


@dataclass(eq=False)
class Rewritten(AppliedPatch):
    """Applied rewrite: a new code object in the same function."""

    function: FunctionType
    code: CodeType

    def __post_init__(self) -> None:
        self.original = self.function.__code__
        self._run(self.code)

    def holds(self) -> bool:
        return self.function.__code__ is self.code

    def undo(self) -> Swaps:
        self._run(self.original)
        return {}

    def _run(self, code: CodeType) -> None:
        self.function.__code__ = code
        # A cache around the function still has results of the previous code.
        forget = getattr(self.place.value, "cache_clear", None)
        if callable(forget):
            forget()

    def _is_at(self, place: Place) -> bool:
        return place.value is not MISSING and function_behind(self.patch, place.value) is self.function


@dataclass(eq=False)
class Added(AppliedPatch):
    """Applied add: a new attribute."""

    def __post_init__(self) -> None:
        owner, name = self.place.owner, self.place.name
        # An attribute that a module's __getattr__ creates lazily appears only in dir().
        if self.place.value is not MISSING or (isinstance(owner, ModuleType) and name in dir(owner)):
            raise NotNeeded(f"{self.patch.target} already exists")
        function = self.patch.function
        self.values = [self.patch.value if function is None else _at_home(function, self.patch.target)]
        setattr(owner, name, self.values[0])

    def holds(self) -> bool:
        return self._is_mine(look_up(self.place.owner, self.place.name)[0])

    def undo(self) -> Swaps:
        delattr(self.place.owner, self.place.name)
        return {}


@dataclass(eq=False)
class Entry(AppliedPatch):
    """Applied entry: one key of a mapping."""

    def __post_init__(self) -> None:
        mapping, key, target = self.place.value, self.patch.key, self.patch.target
        if not isinstance(mapping, MutableMapping):
            raise PatchDrift(f"{target} is a {type(mapping).__name__}, expected a mapping")
        self.mapping, self.values = mapping, [self.patch.value]
        self.original = mapping.get(key, MISSING)
        if self.patch.present and self.original is MISSING:
            raise PatchDrift(f"{target} has no key {key!r}")
        if not self.patch.present and self.original is not MISSING:
            raise NotNeeded(f"{target} already has the key {key!r}")
        if self.patch.bodies:
            bodies.check(self.patch, self.original)
        self.is_layer = self.original is not MISSING and _is_shadowed(mapping, key)
        mapping[key] = self.patch.value

    def holds(self) -> bool:
        return self._is_mine(self.mapping.get(self.patch.key, MISSING))

    def _standing(self, place: Place) -> Any:
        return self.mapping.get(self.patch.key)

    def undo(self) -> Swaps:
        if self.original is MISSING or self.is_layer:
            del self.mapping[self.patch.key]
        else:
            self.mapping[self.patch.key] = self.original
        return {}

    def follow(self, swaps: Swaps) -> None:
        super().follow(swaps)
        self.original = swapped(self.original, swaps)

    def _is_at(self, place: Place) -> bool:
        return place.value is self.mapping


def _is_shadowed(mapping: MutableMapping[Any, Any], key: Any) -> bool:
    """Return whether a new value would shadow the existing one, as in a ChainMap, instead of replacing it."""
    if isinstance(mapping, dict):
        return False
    value = mapping[key]
    try:
        del mapping[key]
    except KeyError:
        return True
    mapping[key] = value
    return False


def _at_home(function: Any, target: Target) -> Any:
    """Copy ``function`` with the name of ``target``, so that it can be pickled by reference."""
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_at_home(function.__func__, target))
    copy = FunctionType(
        function.__code__, function.__globals__, target.path[-1], function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__module__, copy.__qualname__ = target.module, ".".join(target.path)
    return copy
