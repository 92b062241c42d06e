"""No-op annotations for NVIDIA's profilers (NVTX), and allocator history without CUDA."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that returns ``value`` for any arguments."""
    return lambda *args, **kwargs: value


@contextlib.contextmanager
def no_marks(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Do nothing."""
    yield


class NoAverages(list):  # type: ignore[type-arg]
    """The averages of a profile, without rows, because torch_npu writes the operators into files."""

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Return a sentence instead of the table."""
        return "torch_npu's profiler writes its tables into files: use tensorboard_trace_handler or export_chrome_trace"

    def total_average(self) -> None:
        """Return None, because there are no averages."""


# Keyed by the path inside torch.cuda.
MARKS: dict[str, Any] = {
    "nvtx.range_push": returning(0),
    "nvtx.range_pop": returning(0),
    "nvtx.range_start": returning(0),
    "nvtx.range_end": returning(None),
    "nvtx.mark": returning(None),
    "nvtx.range": no_marks,
    "profiler.start": returning(None),
    "profiler.stop": returning(None),
    "profiler.profile": no_marks,
    "cudart": lambda: SimpleNamespace(
        **{name: returning(0) for name in ("cudaProfilerStart", "cudaProfilerStop")},
        # A buffer that the program wants to pin is used unpinned.
        **{name: returning(0) for name in ("cudaHostRegister", "cudaHostUnregister")},
    ),
}


def _snapshot() -> dict[str, list[Any]]:
    return {"segments": [], "device_traces": []}


def _dump(filename: str) -> None:
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


# Host memory has no allocator history.
NO_HISTORY: dict[str, Any] = {
    "_record_memory_history": returning(None),
    "_snapshot": lambda *args, **kwargs: _snapshot(),
    "_dump_snapshot": lambda filename="dump_snapshot.pickle", *args, **kwargs: _dump(filename),
}


def marks_of(module: str) -> dict[str, Any]:
    """Return the no-op annotations for one module of torch.cuda, by name."""
    return {path.partition(".")[2]: mark for path, mark in MARKS.items() if path.startswith(f"{module}.")}


def with_bool_signature(record: Callable[..., None]) -> Callable[..., None]:
    """Return a ``_record_memory_history`` of torch_npu that also accepts torch's older signature, as torch does.

    The first argument of the older signature is a bool; the conversion follows torch's documentation of both.
    """

    def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
        if isinstance(enabled, bool):
            record(**_in_new_signature(enabled, *args, **kwargs))
        else:
            record(enabled, *args, **kwargs)

    return _record_memory_history


def _in_new_signature(
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
