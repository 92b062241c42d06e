"""torchvision, imported by the training loop of a text model for the data sets of another."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ascend_adapt import Patch, provide

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

_MESSAGE = "torchvision: is not installed, and an image data set was asked for — pip install torchvision"


class _Unavailable:
    """Stands for each class and function of a package that is imported, subclassed, and never called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(_MESSAGE, name="torchvision")


def _fill(module: ModuleType) -> None:
    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return _Unavailable

    module.__getattr__ = missing  # type: ignore[method-assign]


def _provided(name: str) -> Patch:
    return provide(
        name,
        name=name.replace(".", "_"),
        host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
        why="megatron.training imports the data set of vision models, which imports it without a guard",
        until="these code bases import it where images are read",
        without="crash",
    )(_fill)


PATCHES = tuple(map(_provided, ("torchvision", "torchvision.transforms", "torchvision.datasets")))
