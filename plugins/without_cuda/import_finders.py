"""The import finders after one in sys.meta_path, such as those of editable installs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def found_after(
    finder: MetaPathFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the spec from the finders after ``finder``; finders before it have already been tried."""
    finders = list(sys.meta_path)
    for other in finders[finders.index(finder) + 1 :]:
        find = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
        if spec is not None:
            return spec
    return None
