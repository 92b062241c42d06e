"""Placeholders for torchvision and Pillow, which the training loop of a text model imports for vision datasets."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ascend_adapt import Patch, provide

from ..code_bases import MEGATRON_DEEPSPEED

MODULES = (
    *("torchvision", "torchvision.transforms", "torchvision.datasets"),
    *("PIL", "PIL.Image", "PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageOps"),
)
DISTRIBUTIONS = {"torchvision": "torchvision", "PIL": "pillow"}


def _fill(module: ModuleType) -> None:
    name = DISTRIBUTIONS[module.__name__.partition(".")[0]]

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(f"{name}: is not installed, but needed to read images — pip install {name}")

    unavailable = type("Unavailable", (), {"__init__": refuse, "__doc__": f"Placeholder for a class of {name}."})

    def attribute(wanted: str) -> type:
        if wanted.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {wanted!r}")
        return unavailable

    if "." in module.__name__:  # Only modules of a package are imported.
        module.__getattr__ = attribute  # type: ignore[method-assign]


def _provided(name: str) -> Patch:
    return provide(
        name,
        name=name.replace(".", "_"),
        host=MEGATRON_DEEPSPEED,
        why="megatron.training imports vision datasets, which import it without a guard",
        until="the code base only imports it to read images",
        without="crash",
    )(_fill)


PROVIDED = tuple(map(_provided, MODULES))
