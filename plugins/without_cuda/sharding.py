"""FullyShardedDataParallel (FSDP1) on a CPU. Source: torch 2.13 distributed/fsdp/_init_utils.py, _flat_param.py."""

from __future__ import annotations

import contextlib
from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "torch.distributed.fsdp._init_utils:_check_module_states_for_sync_module_states",
    devices="cpu",
    why="sync_module_states=True raises an error for parameters in host memory, which gloo can broadcast",
    until="torch accepts them if the process group does",
    without="crash",
    symptom=Symptom('tensor.device == torch.device("cpu")'),
)
def module_states_in_host_memory(call: Call) -> None:
    """Accept parameters and buffers in host memory."""


@wrap(
    "torch.distributed.fsdp._flat_param:FlatParamHandle.to_cpu",
    devices="cpu",
    why="a full state dict with offload_to_cpu=True frees the storage that it copies from: the same one on a CPU",
    until="torch leaves parameters in host memory where they are",
    without="crash",
    symptom=Symptom("self._free_unsharded_flat_param()"),
)
def flat_parameters_in_host_memory(call: Call) -> Any:
    """Leave the flat parameter where it is."""
    return contextlib.nullcontext()
