"""How each kind is applied to a loaded module, and undone."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ascend_adapt.errors import PatchConflict, PatchDrift
from ascend_adapt.patches import syntax
from ascend_adapt.patches.rewriting import function_behind, rewritten_code
from ascend_adapt.patches.slot import Slot
from ascend_adapt.patches.spec import NotNeeded, Patch
from ascend_adapt.patches.target import MISSING, Place, Target, locate, locate_present, look_up

Swaps = dict[int, tuple[Any, Any]]
"""``id(old) -> (old, new)``: who holds old as a copy of a target must hold new instead."""


def chain(swaps: Swaps, later: Swaps) -> None:
    """Add ``later`` swaps to ``swaps``, whose new objects may have been swapped again."""
    for key, (old, new) in swaps.items():
        swaps[key] = (old, later[id(new)][1] if id(new) in later else new)
    swaps.update(later)


@dataclass(eq=False)
class Application:
    """A patch in force at one place; ``swaps`` is what aliases must follow after apply."""

    patch: Patch
    module: ModuleType
    place: Place
    swaps: Swaps = field(default_factory=dict, init=False)
    is_borrowed: bool = field(default=False, init=False)
    values: list[Any] = field(default_factory=list, init=False)
    """What the patch put there, and what that was swapped for when it became the target of another patch."""

    def holds(self) -> bool:
        """Return whether the place still is what the patch made of it."""
        raise NotImplementedError

    def undo(self) -> Swaps:
        """Restore the place exactly and return what aliases must follow."""
        raise NotImplementedError

    def follow(self, swaps: Swaps) -> None:
        """Follow other patches whose targets this one holds copies of."""
        self.values += [swaps[id(value)][1] for value in self.values if id(value) in swaps]

    def _is_mine(self, value: Any) -> bool:
        return any(value is mine for mine in self.values)

    def is_current(self) -> bool:
        """Return whether the patch holds, and its target still is that place: a reload makes new classes."""
        try:
            return self.holds() and self._is_at(locate(self.patch.target, self.module))
        except PatchDrift:
            return False

    def _is_at(self, place: Place) -> bool:
        return place.owner is self.place.owner


class Applier:
    """Applies patches; keeps one slot an attribute, so that several patches can share it."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.applied: list[Application] = []

    def apply(self, patch: Patch, module: ModuleType) -> Application:
        """Apply ``patch`` (any kind but provide) to ``module``.

        Raises:
            NotNeeded: the target already behaves.
            PatchDrift: the target is missing or has changed.
            PatchConflict: another patch excludes this one.
        """
        application = self._made(patch, module)
        self.applied.append(application)
        return application

    def undo(self, application: Application) -> Swaps:
        """Take an application that holds back, and return what aliases must follow."""
        swaps = application.undo()
        self.applied.remove(application)
        self.follow(swaps)
        return swaps

    def follow(self, swaps: Swaps) -> None:
        """Let patches that hold what others have just swapped follow, and add to ``swaps`` what they swap in turn."""
        for slot in self.slots:
            chain(swaps, slot.follow(swaps))
        for application in self.applied:
            application.follow(swaps)

    def holders(self) -> list[Any]:
        """Return the containers through which this package holds originals."""
        places = [one.place for one in self.applied] + [slot.place for slot in self.slots]
        pairs = [pair for one in self.applied for pair in one.swaps.values()]
        mine = [holder for slot in self.slots for holder in slot.holders()]
        return [*places, *map(vars, places), *pairs, *mine]

    def _made(self, patch: Patch, module: ModuleType) -> Application:
        if patch.kind == "add":
            return _Added(patch, module, locate(patch.target, module))
        place = locate_present(patch.target, module)
        slot = self._slot_at(place)
        if patch.unless is not None:
            reason = patch.unless(slot.original)
            if reason:
                raise NotNeeded(reason)
        if patch.kind == "rewrite":
            if place.inherited:
                base = next(cls for cls in place.owner.__mro__ if place.name in vars(cls))
                raise PatchDrift(f"{patch.target} is inherited from {base.__qualname__}, whose code all would share")
            function, code = rewritten_code(patch, slot.original)
            if any(isinstance(one, _Rewritten) and one.function is function and one.holds() for one in self.applied):
                raise PatchConflict(f"{patch.target} is rewritten already")
            return _Rewritten(patch, module, place, function, code)
        if patch.kind == "entry":
            return _Entry(patch, module, place)
        if patch.kind == "replace":
            if any(layer.kind == "replace" for layer in slot.layers):
                raise PatchConflict(f"{patch.target} is replaced already")
            _check_body(patch, slot.original)
        return _Layer(patch, module, place, slot)

    def _slot_at(self, place: Place) -> Slot:
        """Return the slot of a place: a module that re-exports a function shares that of its home."""
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


@dataclass(eq=False)
class _Layer(Application):
    """A wrap or a replacement on a slot."""

    slot: Slot

    def __post_init__(self) -> None:
        self.swaps, self.is_borrowed = self.slot.put(self.patch), self.slot.is_borrowed

    def holds(self) -> bool:
        if not self.slot.is_ours() or not any(layer is self.patch for layer in self.slot.layers):
            return False
        # A module that shares the slot of another may still have to follow its latest head.
        value = look_up(self.place.owner, self.place.name)[0]
        return any(value is head for head in self.slot.heads)

    def undo(self) -> Swaps:
        return self.slot.take(self.patch)


@dataclass(eq=False)
class _Rewritten(Application):
    """Another code object in the same function."""

    function: FunctionType
    code: CodeType

    def __post_init__(self) -> None:
        self.original = self.function.__code__
        self.function.__code__ = self.code

    def holds(self) -> bool:
        return self.function.__code__ is self.code

    def undo(self) -> Swaps:
        self.function.__code__ = self.original
        return {}

    def _is_at(self, place: Place) -> bool:
        return place.value is not MISSING and function_behind(self.patch, place.value) is self.function


@dataclass(eq=False)
class _Added(Application):
    """A new attribute."""

    def __post_init__(self) -> None:
        owner, name = self.place.owner, self.place.name
        # What a module offers lazily, by its __getattr__, is only listed.
        if self.place.value is not MISSING or (isinstance(owner, ModuleType) and name in dir(owner)):
            raise NotNeeded(f"{self.patch.target} is there already")
        function = self.patch.function
        self.values = [self.patch.value if function is None else _at_home(function, self.patch.target)]
        setattr(owner, name, self.values[0])

    def holds(self) -> bool:
        return self._is_mine(look_up(self.place.owner, self.place.name)[0])

    def undo(self) -> Swaps:
        delattr(self.place.owner, self.place.name)
        return {}


@dataclass(eq=False)
class _Entry(Application):
    """One key of a mapping."""

    def __post_init__(self) -> None:
        mapping, key, target = self.place.value, self.patch.key, self.patch.target
        if not isinstance(mapping, MutableMapping):
            raise PatchDrift(f"{target} is a {type(mapping).__name__}, expected a mapping")
        self.mapping, self.values = mapping, [self.patch.value]
        self.original = mapping.get(key, MISSING)
        if self.patch.present and self.original is MISSING:
            raise PatchDrift(f"{target} has no key {key!r}")
        if not self.patch.present and self.original is not MISSING:
            raise NotNeeded(f"{target} has the key {key!r} already")
        mapping[key] = self.patch.value

    def holds(self) -> bool:
        return self._is_mine(self.mapping.get(self.patch.key, MISSING))

    def undo(self) -> Swaps:
        if self.original is MISSING:
            del self.mapping[self.patch.key]
        else:
            self.mapping[self.patch.key] = self.original
        return {}

    def follow(self, swaps: Swaps) -> None:
        super().follow(swaps)
        self.original = swaps.get(id(self.original), (None, self.original))[1]

    def _is_at(self, place: Place) -> bool:
        return place.value is self.mapping


def _at_home(function: Any, target: Target) -> Any:
    """A copy of ``function`` that says it belongs to ``target``, so that it pickles by its new name."""
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_at_home(function.__func__, target))
    copy = FunctionType(
        function.__code__, function.__globals__, target.path[-1], function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__module__, copy.__qualname__ = target.module, ".".join(target.path)
    return copy


def _check_body(patch: Patch, original: Any) -> None:
    if not patch.bodies:
        return
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(original)))
        found = syntax.digest(ast.parse(source).body[0])
    except (OSError, TypeError, SyntaxError) as error:
        raise PatchDrift(f"{patch.target}: its source cannot be read: {error}") from error
    if found not in patch.bodies:
        raise PatchDrift(f"{patch.target}: its body is {found}, expected {' or '.join(patch.bodies)}")
