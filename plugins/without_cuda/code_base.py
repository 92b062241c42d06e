"""Modules of a code base written for CUDA, and global names in these modules that are bound to objects of torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class CudaCodeBase:
    """A code base: the top-level modules ``roots`` in ``folder`` (None for all modules in it), and a script there.

    ``any_script`` includes a script in any folder, for a library whose users write their own scripts.
    """

    folder: Path
    roots: tuple[str, ...] | None
    any_script: bool = False

    @classmethod
    def around(cls, module: str, roots: tuple[str, ...] | None, any_script: bool = False) -> CudaCodeBase:
        """Return the code base to which the loaded ``module`` belongs."""
        file = Path(sys.modules[module].__file__ or "").resolve()
        depth = module.count(".") + (file.name == "__init__.py")
        return cls(file.parents[depth], roots, any_script)

    def owns(self, module: ModuleType) -> bool:
        """Return whether a loaded module belongs to the code base."""
        name, file = module.__name__, getattr(module, "__file__", None)
        root = name.partition(".")[0]
        top = module if root == name else sys.modules.get(root)
        if not file or top is None:
            return False
        if name == "__main__" and self.any_script:
            return True
        if name != "__main__" and self.roots is not None and root not in self.roots:
            return False
        places = getattr(top, "__path__", None) or [getattr(top, "__file__", None) or ""]
        return any(Path(place).resolve().parent == self.folder for place in places)


class Names:
    """Replacements of torch objects in a code base, as (object, replacement) pairs."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._pairs: Mapping[int, tuple[Any, Any]] = {id(old): (old, new) for old, new in pairs}

    def rebind(self, module: ModuleType) -> None:
        """Rebind each global name of ``module`` that is bound to one of the objects to the object's replacement."""
        for name, value in vars(module).copy().items():
            if id(value) in self._pairs:
                setattr(module, name, self._pairs[id(value)][1])
