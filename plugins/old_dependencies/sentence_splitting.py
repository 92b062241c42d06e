"""Provides ``nltk``: preprocess_data.py subclasses it on import, although only --split-sentences needs it."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from ascend_adapt import provide

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


def _refuse(*_: Any, **__: Any) -> None:
    raise ModuleNotFoundError("nltk: is not installed, but --split-sentences needs it — pip install nltk")


@provide(
    "nltk",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    why="the tokenizing tool accepts that nltk is missing, but then uses it as a base class",
    until="the tool only defines that class if nltk is installed",
    without="crash",
)
def nltk(module: ModuleType) -> None:
    """Provide the base class, and functions that raise an error when they are called."""
    variables = type("PunktLanguageVars", (), {"__init__": _refuse})
    offered = SimpleNamespace(punkt=SimpleNamespace(PunktLanguageVars=variables))
    vars(module).update(tokenize=offered, load=_refuse, download=_refuse)
