"""NPUGraph on the emulated device: each replay calls the captured kernels again; only ranks import this module.

Replayed kernels write to the tensors of the capture. A real graph runs without the host, so a capture rejects code
that waits for the device. As on a real device, only replays advance the random number generator; a capture does not
advance it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
_captured: list[_Call] | None = None


def recorded(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a device kernel so that its calls are recorded while a graph is captured."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        if _captured is not None:
            _captured.append((kernel, args, kwargs, result))
        return result

    return call


def is_capturing() -> bool:
    """Return whether a graph is being captured in this process."""
    return _captured is not None


def refuse_wait(name: str) -> None:
    """Reject a host-device sync during a capture.

    Raises:
        RuntimeError: a graph is being captured.
    """
    if _captured is not None:
        raise RuntimeError(
            f"{name}: waits for the device while a graph is captured, expected only work on the device — move it "
            "out of the captured code; a real NPU rejects it too"
        )


def install() -> None:
    """Replace the CANN calls of torch_npu's NPUGraph."""
    import torch_npu

    module = getattr(torch_npu.npu, "graphs", None)
    if module is None:  # torch_npu before 2.6 lacks these.
        return
    graph = module.NPUGraph
    graph.capture_begin, graph.capture_end = _capture_begin, _capture_end
    graph.replay, graph.reset, graph.pool = _replay, _reset, _pool
    module.is_current_stream_capturing = torch_npu.npu.is_current_stream_capturing = is_capturing


def _capture_begin(graph: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
    global _captured
    refuse_wait("NPUGraph.capture_begin")
    graph.generator = torch.npu.default_generators[torch.npu.current_device()]
    graph.state = graph.generator.get_state()
    _captured = []


def _capture_end(graph: Any) -> None:
    global _captured
    graph.calls, _captured = _captured, None
    seed = graph.generator.initial_seed()
    graph.generator.set_state(graph.state)
    if seed != graph.generator.initial_seed():
        raise RuntimeError(  # torch_npu's message
            "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
            "the original seed."
        )


def _replay(graph: Any) -> None:
    with torch.no_grad():
        for kernel, args, kwargs, result in graph.calls:
            again = kernel(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old is not new:
                    old.detach().copy_(new)


def _reset(graph: Any) -> None:
    graph.calls = []


def _pool(graph: Any) -> tuple[int, int]:
    return 0, id(graph)  # The recorded calls keep the memory of the capture alive.


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
