"""``nltk``, which preprocess_data.py needs only for --split-sentences, but uses as a base class."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from ascend_adapt import provide

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


def _refuse(*_: Any, **__: Any) -> None:
    raise ModuleNotFoundError("nltk: not installed, needed for --split-sentences — pip install nltk")


@provide(
    "nltk",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    why="the tokenizing tool accepts a missing nltk, and then uses it as a base class",
    until="the tool defines that class only if nltk is installed",
    without="crash",
)
def nltk(module: ModuleType) -> None:
    """Provide the base class, and functions that raise when they are used."""
    variables = type("PunktLanguageVars", (), {"__init__": _refuse})
    offered = SimpleNamespace(punkt=SimpleNamespace(PunktLanguageVars=variables))
    vars(module).update(tokenize=offered, load=_refuse, download=_refuse)
