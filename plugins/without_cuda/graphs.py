"""CUDA graphs on devices without them: graphed callables run eagerly, and capture raises an error."""

from __future__ import annotations

from typing import Any

_REFUSAL = (
    "torch.cuda.graph: this device cannot capture a CUDA graph, expected code without one — turn off the program's "
    "option for CUDA graphs"
)


def _make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
    return callables


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(_REFUSAL)


EAGER: dict[str, Any] = {
    "make_graphed_callables": _make_graphed_callables,
    "CUDAGraph": _refuse,
    "graph": _refuse,
    "graph_pool_handle": _refuse,
}
