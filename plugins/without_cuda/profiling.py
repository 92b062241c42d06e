"""Calls that mark a run for NVIDIA's profilers, where there are none, and those that record what an allocator does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that returns ``value``, whatever it is given."""
    return lambda *args, **kwargs: value


@contextlib.contextmanager
def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


# By the path below torch.cuda.
MARKS: dict[str, Any] = {
    "nvtx.range_push": returning(0),
    "nvtx.range_pop": returning(0),
    "nvtx.mark": returning(None),
    "nvtx.range": _nothing,
    "profiler.start": returning(None),
    "profiler.stop": returning(None),
    "profiler.profile": _nothing,
    "cudart": lambda: SimpleNamespace(cudaProfilerStart=returning(0), cudaProfilerStop=returning(0)),
}
# Host memory has no allocator that could be asked.
NO_HISTORY: dict[str, Any] = {
    "_record_memory_history": returning(None),
    "_snapshot": lambda device=None: {"segments": [], "device_traces": []},
}


def below(module: str) -> dict[str, Any]:
    """Return the marks of one module of torch.cuda, by their names in it."""
    return {path.partition(".")[2]: mark for path, mark in MARKS.items() if path.startswith(f"{module}.")}


def with_truth_values(record: Callable[..., None]) -> Callable[..., None]:
    """Return torch_npu's ``_record_memory_history`` with torch's first signature, too, which torch still takes.

    That one begins with True or False; what it asks for follows torch's own documentation of both.
    """

    def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
        if isinstance(enabled, bool):
            record(**_as_now(enabled, *args, **kwargs))
        else:
            record(enabled, *args, **kwargs)

    return _record_memory_history


def _as_now(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: Any = None,
    record_context_cpp: bool = False,
) -> dict[str, Any]:
    traced = trace_alloc_max_entries > 1
    context = "alloc" if traced and trace_alloc_record_context else "state" if record_context else None
    return {
        "enabled": ("all" if traced else "state") if enabled else None,
        "context": context,
        "stacks": "all" if record_context_cpp else "python",
        "max_entries": trace_alloc_max_entries,
        "device": device,
    }
