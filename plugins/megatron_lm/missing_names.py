"""Names that Megatron uses and that this Python or numpy lacks."""

from __future__ import annotations

import contextlib
from typing import Any

from ascend_adapt import Symptom, add

from .releases import HOST


@add(
    "typing:override",
    host=HOST,
    why="Megatron-LM 0.19 imports it, which needs Python 3.12, while its other code does not",
    until="support for Python 3.11 ends, in October 2027",
    without="crash",
    symptom=Symptom(reason="the source archives of megatron-core do not contain megatron.training"),
)
def override(method: Any) -> Any:
    """Mark the method as overriding, as typing.override of Python 3.12 does."""
    with contextlib.suppress(AttributeError, TypeError):
        # An object without attributes stays unmarked, as in Python 3.12.
        method.__override__ = True
    return method


@add(
    "numpy:product",
    requires="numpy>=2",
    host=HOST,
    why="Megatron-core 0.12 calls it to save a distributed checkpoint; numpy 2 only has prod",
    until="support for Megatron-core 0.12 ends",
    without="crash",
)
def product(*args: Any, **kwargs: Any) -> Any:
    """Call numpy.prod."""
    import numpy

    return numpy.prod(*args, **kwargs)
