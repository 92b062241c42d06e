"""The functional form of torch.nn.DataParallel on a CPU. Source: torch 2.13 nn/parallel/data_parallel.py."""

from __future__ import annotations

import inspect
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "torch.nn.parallel.data_parallel:data_parallel",
    devices="cpu",
    why="unlike DataParallel, it raises without an accelerator",
    until="it calls the module where there is no accelerator, as DataParallel does",
    without="crash",
    symptom=Symptom("raise RuntimeError('device type could not be determined')"),
)
def data_parallel_on_the_host(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the module itself."""
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    inputs = given["inputs"] if isinstance(given["inputs"], tuple) else (given["inputs"],)
    return given["module"](*inputs, **(given.get("module_kwargs") or {}))
