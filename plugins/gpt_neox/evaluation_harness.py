"""v2.0 imports lm_eval 0.3 and best_download before it trains, and uses them only where eval_tasks are asked for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ascend_adapt import Host, Patch, provide

IMPORTING = Host("gpt-neox v2.0", present=("megatron/neox_arguments/__init__.py", "megatron/model/flash_attention.py"))
MODULES = ("", ".base", ".evaluator", ".models", ".models.gpt2", ".tasks", ".utils")


class Missing:
    """What evaluation begins with: it says what is missing as soon as somebody makes one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(_told("lm_eval"))


def _told(module: str) -> str:
    return f"{module}: is not installed, expected it for eval_tasks — pip install lm_eval==0.3.0 best_download"


def _provided(name: str, **offered: Any) -> Patch:
    def fill(module: ModuleType) -> None:
        def __getattr__(attribute: str) -> Any:
            raise AttributeError(f"{name}.{attribute}: {_told(name.partition('.')[0])}")

        vars(module).update(offered, __getattr__=__getattr__)

    return provide(
        name,
        name=name.replace(".", "_"),
        host=IMPORTING,
        why="training imports it, and lm_eval 0.3 brings a hundred packages; lm_eval 0.4 has no models.gpt2",
        until="support for GPT-NeoX v2.0 ends",
        without="crash",
    )(fill)


def _refuse(*_: Any, **__: Any) -> None:
    raise ModuleNotFoundError(_told("best_download"))


PATCHES = (
    *(_provided(f"lm_eval{module}", **({"GPT2LM": Missing} if module == ".models.gpt2" else {})) for module in MODULES),
    _provided("best_download", download_file=_refuse),
)
