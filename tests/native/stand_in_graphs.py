"""A stand-in for torch.cuda.CUDAGraph on a CPU, which holds what the device would, also with collectives.

It records the operators of a capture with the very tensors they read and wrote, undoes their in-place writes (a capture
computes nothing), and runs them again at a replay. A value that reaches the graph other than through its static tensors
is therefore as stale as on a GPU. What it cannot show: streams, memory pools, kernels outside of torch.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.autograd import _unsafe_preserve_version_counter as unversioned
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from ascend_adapt.native.step import step_graph

CUDA = SimpleNamespace(type="cuda")


class StandInGraph:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.calls: list = []
        self.written: tuple = ()
        self.replays = 0

    def reset(self) -> None:
        self.calls.clear()

    def replay(self) -> None:
        self.replays += 1
        pending = []
        # A device does not count the versions of tensors.
        with torch.no_grad(), unversioned(self.written):
            for function, given, named, results in self.calls:
                is_collective = function.namespace == "c10d"
                if not is_collective:
                    _wait_for(pending)
                again = function(*given, **named)
                for old, new in zip(results, tensors_of(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
                if is_collective:
                    pending += [one for one in tree_flatten(again)[0] if isinstance(one, torch.ScriptObject)]
            _wait_for(pending)


class Capture(TorchDispatchMode):
    """Records operators into a graph, and undoes what they write to tensors that were there before."""

    def __init__(self, graph: StandInGraph) -> None:
        super().__init__()
        self.graph, self.before = graph, {}

    def __torch_dispatch__(self, function, types, given=(), named=None):
        named = named or {}
        if function.namespace == "profiler":
            return function(*given, **named)
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing: a value is read on the host")
        places = [*given, *(named.get(one.name) for one in function._schema.arguments[len(given) :])]
        for argument, value in zip(function._schema.arguments, places, strict=False):
            # The schemas of collectives do not say what they write.
            if function.namespace == "c10d" or (argument.alias_info is not None and argument.alias_info.is_write):
                for tensor in tensors_of(value):
                    self.before.setdefault(tensor.data_ptr(), (tensor, tensor.clone()))
        result = function(*given, **named)
        self.graph.calls.append((function, given, named, tensors_of(result)))
        return result

    def undo(self) -> None:
        self.graph.written = tuple(tensor for tensor, _ in self.before.values())
        with torch.no_grad(), unversioned(self.graph.written):
            for tensor, values in self.before.values():
                tensor.copy_(values)


def tensors_of(value):
    return [one for one in tree_flatten(value)[0] if isinstance(one, torch.Tensor)]


def _wait_for(works):
    """Wait for collectives as the device would: what comes next may read their results."""
    while works:
        works.pop().wait()


@contextmanager
def stand_in_capture(graph, **_):
    drawn = torch.get_rng_state()
    with Capture(graph) as capture:
        yield
    capture.undo()
    torch.set_rng_state(drawn)  # only replays draw random numbers


@contextmanager
def stand_in_graphs():
    """Trainers made inside capture their steps, as on a GPU."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    real, wait = step_graph.why_not, dist.Work.wait

    def unrecorded(work, *given):
        with _disable_current_modes():  # gloo copies the result of a collective here
            return wait(work, *given)

    with ExitStack() as changes:
        for name, value in {
            "CUDAGraph": StandInGraph,
            "graph": stand_in_capture,
            "graph_pool_handle": object,
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda one: nullcontext(),
            "synchronize": lambda device: None,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device: (1 << 30, 1 << 30),
        }.items():
            changes.enter_context(patch.object(torch.cuda, name, value))
        on_cuda = patch.object(step_graph, "why_not", lambda settings, mesh: real(settings, replace(mesh, device=CUDA)))
        changes.enter_context(on_cuda)
        changes.enter_context(patch.object(dist.Work, "wait", unrecorded))
        yield
