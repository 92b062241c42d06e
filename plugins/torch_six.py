"""The content of ``torch._six``, which torch removed in 2.0."""

from __future__ import annotations

import collections.abc
import math
from types import ModuleType


def fill(module: ModuleType) -> None:
    """Fill the module with the names that torch._six has in torch 1.13."""
    module.inf, module.nan = math.inf, math.nan  # type: ignore[attr-defined]
    module.string_classes, module.int_classes = (str, bytes), int  # type: ignore[attr-defined]
    module.container_abcs, module.PY3 = collections.abc, True  # type: ignore[attr-defined]
