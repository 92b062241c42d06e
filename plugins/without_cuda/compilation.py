"""torch.compile for CUDA code: eager unless the program names a backend of its own."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

_reported = False


def run_eagerly(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch.compile that returns the model itself unless ``backend`` is something other than inductor."""

    @functools.wraps(compile_)
    def compile(model: Any = None, *args: Any, **options: Any) -> Any:
        if options.get("backend", "inductor") != "inductor":
            return compile_(model, *args, **options)
        report_once()
        return model if model is not None else lambda function: function

    return compile


def report_once() -> None:
    """Print once, on rank 0, that the model is not compiled."""
    global _reported
    if not _reported and os.environ.get("RANK", "0") == "0":
        print("ascend_adapt: torch.compile is ignored: the model runs eagerly on this device", file=sys.stderr)
    _reported = True
