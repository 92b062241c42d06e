"""NPUGraph on the emulated device: each replay calls the captured kernels again; only ranks import this module.

Replayed kernels write to the tensors of the capture. A real graph runs without the host, so a capture rejects code
that waits for the device. As on a real device, only replays advance the random number generator; a capture does not
advance it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Call:
    kernel: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    offset: int
    """The offset of the random number generator before the call."""
    end: int
    """Its offset after the call; captured code may set another one before the next call."""


_captured: list[_Call] | None = None


def recorded(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a device kernel so that its calls are recorded while a graph is captured."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _captured is None:
            return kernel(*args, **kwargs)
        offset = _offset()
        result = kernel(*args, **kwargs)
        _captured.append(_Call(kernel, args, kwargs, result, offset, _offset()))
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
    graph.generator = _generator()
    graph.state = graph.generator.get_state()
    _captured = []


def _capture_end(graph: Any) -> None:
    global _captured
    graph.calls, _captured = _captured, None
    graph.end = _offset()
    seed = graph.generator.initial_seed()
    graph.generator.set_state(graph.state)
    if seed != graph.generator.initial_seed():
        raise RuntimeError(  # torch_npu's message
            "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
            "the original seed."
        )


def _replay(graph: Any) -> None:
    captured_at, begin = _offset(graph.state), _offset()
    at = captured_at
    with torch.no_grad():
        for call in graph.calls:
            if call.offset != at:
                _seek(begin + call.offset - captured_at)
            at = call.end
            again = call.kernel(*call.args, **call.kwargs)
            for old, new in zip(_tensors(call.result), _tensors(again), strict=True):
                if old is not new:
                    old.detach().copy_(new)
    if graph.end != at:
        _seek(begin + graph.end - captured_at)


def _reset(graph: Any) -> None:
    graph.calls = []


def _pool(graph: Any) -> tuple[int, int]:
    return 0, id(graph)  # The recorded calls keep the memory of the capture alive.


def _generator() -> Any:
    return torch.npu.default_generators[torch.npu.current_device()]


def _offset(state: torch.Tensor | None = None) -> int:
    """Return the offset in a state of a generator, by default in that of the current device's."""
    return int((_generator().get_state() if state is None else state).view(torch.int64)[1])


def _seek(offset: int) -> None:
    state = _generator().get_state()
    state.view(torch.int64)[1] = offset
    _generator().set_state(state)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
