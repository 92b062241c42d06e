"""Names that Megatron uses and this Python, or this numpy, does not have."""

from __future__ import annotations

import contextlib
from typing import Any

from ascend_adapt import Symptom, add

from .releases import HOST


@add(
    "typing:override",
    host=HOST,
    why="Megatron-LM 0.19 imports it, though nothing else in it needs Python 3.12",
    until="Python 3.11 ends, in October 2027",
    without="crash",
    symptom=Symptom(reason="the source archives of megatron-core do not hold megatron.training"),
)
def override(method: Any) -> Any:
    """Return the method, marked as typing.override of Python 3.12 marks it."""
    with contextlib.suppress(AttributeError, TypeError):  # what takes no attribute stays unmarked there too
        method.__override__ = True
    return method


@add(
    "numpy:product",
    requires="numpy>=2",
    host=HOST,
    why="saving a distributed checkpoint calls it in Megatron-core 0.12; numpy 2 has only prod",
    until="support for Megatron-core 0.12 ends",
    without="crash",
)
def product(*args: Any, **kwargs: Any) -> Any:
    """Return what numpy.prod does."""
    import numpy

    return numpy.prod(*args, **kwargs)
