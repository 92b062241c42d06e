"""CUDA graphs on devices that lack graphs: a capture records operators, and a replay runs them again in place."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_reported = False


class CUDAGraph:
    """Graph of operators in the order of their capture; a replay writes its results to the tensors of the capture."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._recorder = _Recorder(self._calls)
        self._random_state: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Record every operator of this thread from now on."""
        _report_once()
        self._calls.clear()
        self._random_state = _generators().get_rng_state()
        self._recorder.__enter__()

    def capture_end(self) -> None:
        """Stop recording, and undo what the recorded operators have changed: a GPU computes nothing in a capture."""
        self._recorder.__exit__(None, None, None)
        self._recorder.restore()
        _generators().set_rng_state(self._random_state)

    def replay(self) -> None:
        """Run the operators again."""
        with torch.inference_mode():  # Unlike no_grad, this may also write tensors of inference_mode.
            for operator, args, kwargs, outputs in self._calls:
                results = tree_leaves(operator(*args, **kwargs))
                if any(returned.alias_info is not None for returned in operator._schema.returns):
                    continue  # The result is a view, or a tensor that was written in place.
                for output, result in zip(tree_leaves(outputs), results, strict=True):
                    if isinstance(output, torch.Tensor):
                        output.copy_(result)

    def reset(self) -> None:
        """Remove the operators and their tensors."""
        self._calls.clear()

    def pool(self) -> tuple[int, int]:
        """Return a dummy handle, because the host has no memory pools."""
        return _pool()

    def instantiate(self) -> None:
        """Do nothing, because there is no graph to build."""

    enable_debug_mode = instantiate

    def debug_dump(self, debug_path: str) -> None:
        """Do nothing, because there is no graph to draw."""


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, calls: list[tuple[Any, Any, Any, Any]]) -> None:
        super().__init__()
        self._calls = calls
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def restore(self) -> None:
        """Undo what the operators wrote in place."""
        with torch.inference_mode():
            for tensor, before in reversed(self._before.values()):
                # Through .data, because a newer version of a tensor that is saved for backward would be an error.
                tensor.data.copy_(before)
        self._before.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            # As in CUDA, a value that is read during capture would be stale in every replay.
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing (a tensor's value is read)"
            )
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in tree_leaves(value):
                    if isinstance(tensor, torch.Tensor) and id(tensor) not in self._before:
                        self._before[id(tensor)] = tensor, tensor.clone()
        outputs = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, outputs))
        return outputs


@contextlib.contextmanager
def _graph(
    cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    cuda_graph.capture_begin(pool, capture_error_mode)
    try:
        yield
    finally:
        cuda_graph.capture_end()


def _make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
    return callables


def _pool() -> tuple[int, int]:
    return 0, 0


def _generators() -> Any:
    """Return the module whose random numbers CUDA code draws."""
    return torch.npu if "ASCEND_ADAPT_EMULATED" in os.environ else torch


def _report_once() -> None:
    global _reported
    if not _reported and os.environ.get("RANK", "0") == "0":
        print("ascend_adapt: CUDA graphs are replayed operator by operator on this device", file=sys.stderr)
    _reported = True


REPLAYED: dict[str, Any] = {
    "make_graphed_callables": _make_graphed_callables,
    "CUDAGraph": CUDAGraph,
    "graph": _graph,
    "graph_pool_handle": _pool,
}
