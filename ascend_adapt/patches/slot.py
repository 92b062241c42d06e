"""One attribute and the wraps and replacement that lie on it, in any order of coming and going."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ascend_adapt.patches.replacement import stand_in, underlying
from ascend_adapt.patches.spec import Patch
from ascend_adapt.patches.target import Place, look_up


@dataclass
class Slot:
    """The original at one place, the patches on it from the innermost out, and what was put there for them."""

    place: Place
    layers: list[Patch] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)

    @property
    def original(self) -> Any:
        """What stood there before any patch."""
        return self.place.value

    @property
    def head(self) -> Any:
        """What stands there if nobody else touched it."""
        return self.heads[-1] if self.heads else self.original

    def is_ours(self) -> bool:
        """Return whether the place still holds what was put there last."""
        return look_up(self.place.owner, self.place.name)[0] is self.head

    def put(self, patch: Patch) -> dict[int, tuple[Any, Any]]:
        """Lay ``patch`` on top (a replacement goes to the bottom) and return what aliases must follow."""
        layers = [patch, *self.layers] if patch.kind == "replace" else [*self.layers, patch]
        return self._stack(layers)

    def take(self, patch: Patch) -> dict[int, tuple[Any, Any]]:
        """Take ``patch`` away and return what aliases must follow; the last one leaves the very original."""
        return self._stack([layer for layer in self.layers if layer is not patch])

    def _stack(self, layers: list[Patch]) -> dict[int, tuple[Any, Any]]:
        owner, name = self.place.owner, self.place.name
        head = self.original
        for layer in layers:
            head = stand_in(layer, head, isinstance(owner, type))
        earlier = [*self.heads, self.original]
        self.layers = layers
        if layers:
            setattr(owner, name, head)
            self.heads.append(head)
        else:
            if self.place.inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, self.original)
            self.heads.clear()
        return {id(underlying(old)): (underlying(old), underlying(head)) for old in earlier if old is not head}

    def holders(self) -> list[Any]:
        """Return the containers through which this package itself holds the original."""
        functions = [underlying(head) for head in self.heads]
        namespaces = [vars(function) for function in functions if hasattr(function, "__dict__")]
        cells = [cell for function in functions for cell in getattr(function, "__closure__", None) or ()]
        return [self.place, vars(self.place), *namespaces, *cells, *self.heads]
