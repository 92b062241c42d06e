"""The functional form of torch.nn.DataParallel on a CPU. Source: torch 2.13 nn/parallel/data_parallel.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "torch.nn.parallel.data_parallel:data_parallel",
    devices="cpu",
    why="unlike DataParallel, it raises an error without an accelerator",
    until="it calls the module directly without an accelerator, as DataParallel does",
    without="crash",
    symptom=Symptom("raise RuntimeError('device type could not be determined')"),
)
def data_parallel_on_cpu(call: Call) -> Any:
    """Call the module directly."""
    inputs = call["inputs"] if isinstance(call["inputs"], tuple) else (call["inputs"],)
    return call["module"](*inputs, **(call["module_kwargs"] or {}))
