"""Threads that CUDA code starts on a CPU: torch's function modes are thread-local, so each thread enters ours."""

from __future__ import annotations

import contextlib
from typing import Any

from ascend_adapt import Symptom, wrap


# Thread.run is overridden by subclasses; every thread calls this method, since Python 3.0.
@wrap(
    "threading:Thread._bootstrap_inner",
    devices="cpu",
    why="torch's function modes are thread-local: in a new thread, a tensor sent to 'cuda' would need CUDA",
    until="threads inherit torch's function modes",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers"),
)
def threads(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the thread with "cuda" as the CPU, if CUDA code was found in this process."""
    from . import programs

    current = programs.current()
    with current.in_new_thread() if current is not None else contextlib.nullcontext():
        return wrapped(*args, **kwargs)
