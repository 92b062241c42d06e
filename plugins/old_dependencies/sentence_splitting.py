"""``nltk``, which preprocess_data.py uses for --split-sentences alone, and names in the head of a class."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from ascend_adapt import provide

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


def _refuse(*_: Any, **__: Any) -> None:
    raise ModuleNotFoundError("nltk: is not installed, expected it for --split-sentences — pip install nltk")


@provide(
    "nltk",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    why="the tool that tokenizes goes on without nltk, and then names it in the head of a class",
    until="the tool defines that class where nltk is there",
    without="crash",
)
def nltk(module: ModuleType) -> None:
    """Fill in the class that the tool derives from, and what says that nltk is missing once it is asked for."""
    variables = type("PunktLanguageVars", (), {"__init__": _refuse})
    offered = SimpleNamespace(punkt=SimpleNamespace(PunktLanguageVars=variables))
    vars(module).update(tokenize=offered, load=_refuse, download=_refuse)
