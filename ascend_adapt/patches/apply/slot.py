"""Slot: one attribute with its wraps and replacement, which can be added and removed in any order."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from ascend_adapt.patches.apply.aliases import Swaps, swapped
from ascend_adapt.patches.apply.replacement import inherited, is_borrowed, stand_in, underlying
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.declare.target import MISSING, Place, standing


@dataclass(eq=False)
class Slot:
    """Slot: the original at one location, its patches from the innermost outwards, and the resulting head.

    Earlier heads are kept as weak references, because their aliases may have to be rebound.
    """

    place: Place
    layers: list[Patch] = field(default_factory=list)
    _head: Any = field(default=MISSING, init=False)
    _earlier: list[weakref.ref[FunctionType]] = field(default_factory=list, init=False)

    @property
    def original(self) -> Any:
        """The object before any patch."""
        return self.place.value

    @property
    def head(self) -> Any:
        """The object that the patches have set last."""
        return self.original if self._head is MISSING else self._head

    @property
    def heads(self) -> list[Any]:
        """All heads that are still alive, the latest last."""
        alive = [head for ref in self._earlier if (head := ref()) is not None]
        return alive if self._head is MISSING else [*alive, self._head]

    @property
    def is_borrowed(self) -> bool:
        """Whether the original is borrowed, so that its aliases elsewhere are independent of this location."""
        return self.place.inherited or is_borrowed(underlying(self.original), self.place)

    def is_ours(self) -> bool:
        """Return whether the head is still the object at the location."""
        return standing(self.place.owner, self.place.name) is self.head

    def put(self, patch: Patch) -> Swaps:
        """Add ``patch`` as the outermost layer, or a replacement as the innermost, and return the swaps for aliases."""
        layers = [patch, *self.layers] if patch.kind == "replace" else [*self.layers, patch]
        return self._stack(layers)

    def take(self, patch: Patch) -> Swaps:
        """Remove ``patch`` and return the swaps for aliases. Removing the last patch restores the original object."""
        return self._stack([layer for layer in self.layers if layer is not patch])

    def follow(self, swaps: Swaps) -> Swaps:
        """Adopt the new head of another slot as the original of this one, and return the swaps for aliases."""
        new = swapped(self.original, swaps)
        if not self.layers or self.place.inherited or new is None or new is self.original:
            return {}
        if any(new is underlying(head) for head in self.heads):
            return {}
        self.place = replace(self.place, value=new)
        return self._stack(self.layers)

    def _stack(self, layers: list[Patch]) -> Swaps:
        owner, name = self.place.owner, self.place.name
        head = inherited(self.place) if layers and self.place.inherited else self.original
        for layer in layers:
            head = stand_in(layer, head, self.place)
        # Aliases of an inherited method belong to the base class, so they stay as they are.
        earlier = self.heads or ([] if self.place.inherited else [self.original])
        swaps = {
            id(underlying(old)): (underlying(old), underlying(head))
            for old in earlier
            if old is not head and _is_one_of_a_kind(old)
        }
        self.layers = layers
        if layers:
            setattr(owner, name, head)
            self._earlier = [weakref.ref(one) for one in self.heads if isinstance(one, FunctionType)]
            self._head = head
            return swaps
        if self.place.inherited or self.place.lazy:
            delattr(owner, name)
        else:
            setattr(owner, name, self.original)
        self._earlier, self._head = [], MISSING
        return swaps

    def holders(self) -> list[Any]:
        """Return the containers in which this package keeps the original."""
        functions = [function for head in self.heads for function in _inner_functions(head)]
        namespaces = [vars(function) for function in functions]
        cells = [cell for function in functions for cell in function.__closure__ or ()]
        return [self.original, vars(self), *self.heads, *namespaces, *cells, *(cell.cell_contents for cell in cells)]


def _inner_functions(head: Any) -> list[FunctionType]:
    """Return the stand-in behind a descriptor, the stand-ins inside it, and the original."""
    inner = getattr(head, "fget", None) or getattr(head, "__func__", head)
    functions = []
    while isinstance(inner, FunctionType):
        functions.append(inner)
        inner = getattr(inner, "__wrapped__", None)
    return functions


def _is_one_of_a_kind(value: Any) -> bool:
    """Return whether two names of this object are aliases. Two names that are True, for example, are unrelated."""
    return not isinstance(value, (int, float, complex, str, bytes, tuple, frozenset, type(None)))
