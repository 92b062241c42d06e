"""How each kind is applied to a loaded module, and undone."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from ascend_adapt.errors import PatchConflict, PatchDrift
from ascend_adapt.patches import syntax
from ascend_adapt.patches.rewriting import rewritten_code
from ascend_adapt.patches.slot import Slot
from ascend_adapt.patches.spec import NotNeeded, Patch
from ascend_adapt.patches.target import MISSING, Place, Target, locate, locate_present, look_up

Swaps = dict[int, tuple[Any, Any]]


class Application(Protocol):
    """A patch in force in one loaded module."""

    swaps: Swaps
    """What aliases must follow after apply."""

    def holds(self) -> bool:
        """Return whether the target still is what the patch made of it."""

    def undo(self) -> Swaps:
        """Restore the target exactly and return what aliases must follow."""


class Applier:
    """Applies patches; keeps one slot an attribute, so that several patches can share it."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, str], Slot] = {}
        self.rewritten: list[_Rewritten] = []

    def apply(self, patch: Patch, module: ModuleType) -> Application:
        """Apply ``patch`` (any kind but provide) to ``module``.

        Raises:
            NotNeeded: the target already behaves.
            PatchDrift: the target is missing or has changed.
            PatchConflict: another patch excludes this one.
        """
        if patch.kind == "add":
            return _Added(patch, locate(patch.target, module))
        place = locate_present(patch.target, module)
        if patch.unless is not None:
            reason = patch.unless(place.value)
            if reason:
                raise NotNeeded(reason)
        if patch.kind == "rewrite":
            return self._rewrite(patch, place)
        if patch.kind == "entry":
            return _Entry(patch, place)
        return _Layer(patch, self._slot(patch, place))

    def holders(self) -> list[Any]:
        """Return the containers through which this package holds originals."""
        return [holder for slot in self.slots.values() for holder in slot.holders()]

    def _slot(self, patch: Patch, place: Place) -> Slot:
        key = (id(place.owner), place.name)
        slot = self.slots.get(key)
        if slot is None or (not slot.layers) or not slot.is_ours():
            slot = self.slots[key] = Slot(place)
        if patch.kind == "replace":
            if any(layer.kind == "replace" for layer in slot.layers):
                raise PatchConflict(f"{patch.target} is replaced already")
            _check_body(patch, slot.original)
        return slot

    def _rewrite(self, patch: Patch, place: Place) -> Application:
        slot = self.slots.get((id(place.owner), place.name))
        descriptor = slot.original if slot is not None and slot.is_ours() else place.value
        function, code = rewritten_code(patch, descriptor)
        if any(other.function is function and other.holds() for other in self.rewritten):
            raise PatchConflict(f"{patch.target} is rewritten already")
        rewritten = _Rewritten(function, function.__code__, code)
        self.rewritten.append(rewritten)
        return rewritten


@dataclass
class _Layer:
    """A wrap or a replacement on a slot."""

    patch: Patch
    slot: Slot
    swaps: Swaps = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.swaps = self.slot.put(self.patch)

    def holds(self) -> bool:
        return self.slot.is_ours() and any(layer is self.patch for layer in self.slot.layers)

    def undo(self) -> Swaps:
        return self.slot.take(self.patch)


@dataclass
class _Rewritten:
    """Another code object in the same function."""

    function: FunctionType
    original: CodeType
    code: CodeType
    swaps: Swaps = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.function.__code__ = self.code

    def holds(self) -> bool:
        return self.function.__code__ is self.code

    def undo(self) -> Swaps:
        self.function.__code__ = self.original
        return {}


@dataclass
class _Added:
    """A new attribute."""

    patch: Patch
    place: Place
    swaps: Swaps = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.place.value is not MISSING:
            raise NotNeeded(f"{self.patch.target} is there already")
        function = self.patch.function
        self.value = self.patch.value if function is None else _at_home(function, self.patch.target)
        setattr(self.place.owner, self.place.name, self.value)

    def holds(self) -> bool:
        return look_up(self.place.owner, self.place.name)[0] is self.value

    def undo(self) -> Swaps:
        delattr(self.place.owner, self.place.name)
        return {}


@dataclass
class _Entry:
    """One key of a mapping."""

    patch: Patch
    place: Place
    swaps: Swaps = field(default_factory=dict)

    def __post_init__(self) -> None:
        mapping, key, target = self.place.value, self.patch.key, self.patch.target
        if not isinstance(mapping, MutableMapping):
            raise PatchDrift(f"{target} is a {type(mapping).__name__}, expected a mapping")
        self.mapping = mapping
        self.original = mapping.get(key, MISSING)
        if self.patch.present and self.original is MISSING:
            raise PatchDrift(f"{target} has no key {key!r}")
        if not self.patch.present and self.original is not MISSING:
            raise NotNeeded(f"{target} has the key {key!r} already")
        mapping[key] = self.patch.value

    def holds(self) -> bool:
        return self.mapping.get(self.patch.key, MISSING) is self.patch.value

    def undo(self) -> Swaps:
        if self.original is MISSING:
            del self.mapping[self.patch.key]
        else:
            self.mapping[self.patch.key] = self.original
        return {}


def _at_home(function: Any, target: Target) -> Any:
    """A copy of ``function`` that says it belongs to ``target``, so that it pickles by its new name."""
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
