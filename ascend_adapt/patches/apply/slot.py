"""One attribute and the wraps and replacement that lie on it, in any order of coming and going."""

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
    """The original at one place, the patches on it from the innermost out, and what was put there for them.

    Of earlier heads only functions that somebody still holds are kept: they may be rebound.
    """

    place: Place
    layers: list[Patch] = field(default_factory=list)
    _head: Any = field(default=MISSING, init=False)
    _earlier: list[weakref.ref[FunctionType]] = field(default_factory=list, init=False)

    @property
    def original(self) -> Any:
        """What stood there before any patch."""
        return self.place.value

    @property
    def head(self) -> Any:
        """What stands there if nobody else touched it."""
        return self.original if self._head is MISSING else self._head

    @property
    def heads(self) -> list[Any]:
        """What was put there and is still held by somebody, the latest last."""
        alive = [head for ref in self._earlier if (head := ref()) is not None]
        return alive if self._head is MISSING else [*alive, self._head]

    @property
    def is_borrowed(self) -> bool:
        """Whether copies of the original elsewhere are not copies of what stands here."""
        return self.place.inherited or is_borrowed(underlying(self.original), self.place)

    def is_ours(self) -> bool:
        """Return whether the place still holds what was put there last."""
        return standing(self.place.owner, self.place.name) is self.head

    def put(self, patch: Patch) -> Swaps:
        """Lay ``patch`` on top (a replacement goes to the bottom) and return what aliases must follow."""
        layers = [patch, *self.layers] if patch.kind == "replace" else [*self.layers, patch]
        return self._stack(layers)

    def take(self, patch: Patch) -> Swaps:
        """Take ``patch`` away and return what aliases must follow; the last one leaves the very original."""
        return self._stack([layer for layer in self.layers if layer is not patch])

    def follow(self, swaps: Swaps) -> Swaps:
        """Follow another slot, whose head is the original of this one, and return what aliases must follow in turn."""
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
        # Copies of an inherited method are copies of the base class's own: they stay.
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
        """Return the containers through which this package itself holds the original."""
        functions = [function for head in self.heads for function in _inner_functions(head)]
        namespaces = [vars(function) for function in functions]
        cells = [cell for function in functions for cell in function.__closure__ or ()]
        return [self.original, vars(self), *self.heads, *namespaces, *cells, *(cell.cell_contents for cell in cells)]


def _inner_functions(head: Any) -> list[FunctionType]:
    """The stand-in behind a descriptor, those it goes through, and the original."""
    inner = getattr(head, "fget", None) or getattr(head, "__func__", head)
    functions = []
    while isinstance(inner, FunctionType):
        functions.append(inner)
        inner = getattr(inner, "__wrapped__", None)
    return functions


def _is_one_of_a_kind(value: Any) -> bool:
    """Whether names that hold this very object are copies of each other: two names that are True are strangers."""
    return not isinstance(value, (int, float, complex, str, bytes, tuple, frozenset, type(None)))
