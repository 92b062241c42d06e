"""torchvision and Pillow, imported by the training loop of a text model for the data sets of another."""

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
        raise ModuleNotFoundError(f"{name}: is not installed, and images were asked for — pip install {name}")

    unavailable = type("Unavailable", (), {"__init__": refuse, "__doc__": f"Stands for what {name} has."})

    def attribute(asked: str) -> type:
        if asked.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {asked!r}")
        return unavailable

    if "." in module.__name__:  # of a package only its modules are imported
        module.__getattr__ = attribute  # type: ignore[method-assign]


def _provided(name: str) -> Patch:
    return provide(
        name,
        name=name.replace(".", "_"),
        host=MEGATRON_DEEPSPEED,
        why="megatron.training imports the data sets of vision models, which import it without a guard",
        until="the code base imports it where images are read",
        without="crash",
    )(_fill)


PROVIDED = tuple(map(_provided, MODULES))
