"""torch.compile for CUDA code, which runs eagerly unless the program chooses a backend."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

_reported = False


def run_eagerly(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch.compile that runs eagerly unless ``backend`` is something other than inductor.

    A module is returned inside torch's OptimizedModule, so that ``_orig_mod`` exists and the names in the state_dict
    are those of a compiled model.
    """

    @functools.wraps(compile_)
    def compile(model: Any = None, *args: Any, **options: Any) -> Any:
        if options.get("backend", "inductor") != "inductor":
            return compile_(model, *args, **options)
        report_once()
        return uncompiled if model is None else uncompiled(model)

    return compile


def uncompiled(model: Any) -> Any:
    """Return a module as an OptimizedModule that runs eagerly, and a function unchanged."""
    import torch
    import torch._dynamo

    return torch._dynamo.OptimizedModule(model, torch._dynamo.disable) if isinstance(model, torch.nn.Module) else model


def report_once() -> None:
    """Report once, on rank 0, that the model is not compiled."""
    global _reported
    if not _reported and os.environ.get("RANK", "0") == "0":
        print("ascend_adapt: torch.compile is ignored: the model runs eagerly on this device", file=sys.stderr)
    _reported = True
