"""Imports the evaluation harness of v2.0 only if eval_tasks are set, instead of before every training."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ascend_adapt import Call, CodeBase, Symptom, provide, wrap

IMPORTING = CodeBase(
    "gpt-neox v2.0", present=("megatron/neox_arguments/__init__.py", "megatron/model/flash_attention.py")
)
HARNESS = "eval_tasks"


def _run_eval_harness(*args: Any, **kwargs: Any) -> Any:
    """Import the code base's harness and return its result."""
    return importlib.import_module(HARNESS).run_eval_harness(*args, **kwargs)


@provide(
    HARNESS,
    name="lazy_eval_harness",
    importers=("megatron.training",),
    instead=True,
    host=IMPORTING,
    why="training imports lm_eval and best_download, which may be missing or incompatible with other packages: "
    "lm_eval 0.3 with transformers 5, lm_eval 0.4, best_download 0.0.9 with urllib3 2",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom("from eval_tasks import run_eval_harness", at="megatron.training"),
)
def lazy_eval_harness(module: ModuleType) -> None:
    """Provide the only function that training imports."""
    module.run_eval_harness = _run_eval_harness  # type: ignore[attr-defined]


@wrap(
    "megatron.training:pretrain",
    host=IMPORTING,
    why="with lazy_eval_harness, a requested harness that cannot be imported would only fail after training",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom("from eval_tasks import run_eval_harness", at="megatron.training"),
)
def require_eval_harness(call: Call) -> Any:
    """Import the harness before training if eval_tasks are set, and report its requirements if that fails."""
    if call["neox_args"].eval_tasks:
        try:
            importlib.import_module(HARNESS)
        except Exception as error:  # The harness's dependencies may raise any exception.
            raise ImportError(
                f"{HARNESS}: cannot be imported ({type(error).__name__}: {error}), but eval_tasks need it — pip "
                f"install lm_eval==0.3.0 best_download 'transformers<5', or remove eval_tasks"
            ) from error
    return call.proceed()
