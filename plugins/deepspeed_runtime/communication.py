"""Fixes for communication: the device's backend, gradients grouped by type, and weights gathered by gloo."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Call, Symptom, replace, wrap

logger = logging.getLogger("ascend_adapt")


@wrap(
    "deepspeed.comm.comm:init_distributed",
    requires="deepspeed>=0.8",
    devices=("cpu", "npu"),
    why="code written for GPUs requests 'nccl', which this device does not have",
    until="callers request no backend",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers"),
)
def communication_backend(call: Call) -> Any:
    """Use the accelerator's backend if 'nccl' is requested."""
    from deepspeed.accelerator import get_accelerator

    if call["dist_backend"] == "nccl":
        backend = get_accelerator().communication_backend_name()
        logger.info("ascend_adapt: init_distributed: 'nccl' requested, using %r", backend)
        call["dist_backend"] = backend
    return call.proceed()


@replace(
    "deepspeed.runtime.engine:split_half_float_double_sparse",
    requires="deepspeed>=0.8.1,<0.13",
    devices="cpu",
    why="gradients are grouped by type names such as torch.cpu.FloatTensor, which no CPU tensor has",
    until="support for DeepSpeed 0.12 ends",
    without="crash",
    symptom=Symptom("'torch.{}.FloatTensor'.format(device_type)"),
)
def bucket_gradients_by_dtype(tensors: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return (type, gradients) for each type: half, float, double, bfloat16, sparse, then others."""
    order = ["torch.HalfTensor", "torch.FloatTensor", "torch.DoubleTensor", "torch.BFloat16Tensor"]
    types = sorted({t.type() for t in tensors}, key=lambda kind: order.index(kind) if kind in order else len(order))
    return [(kind, [t for t in tensors if t.type() == kind]) for kind in types]


@replace(
    "deepspeed.runtime.zero.stage_1_and_2:split_half_float_double",
    requires="deepspeed>=0.8.1,<0.19.8",
    devices="cpu",
    why="ZeRO 1 groups gradients by type names such as torch.cpu.FloatTensor, which no CPU tensor has: each rank "
    "silently keeps its local gradients, and nothing is averaged",
    until="support for DeepSpeed 0.19.7 ends",
    without="wrong numbers",
    symptom=Symptom("'torch.{}.FloatTensor'.format(device_type)"),
)
def zero_bucket_gradients_by_dtype(tensors: list[Any]) -> list[list[Any]]:
    """Return the tensors grouped by type, in order of first occurrence."""
    types = dict.fromkeys(t.type() for t in tensors)
    return [[t for t in tensors if t.type() == kind] for kind in types]


@wrap(
    "deepspeed.runtime.utils:all_gather_into_tensor_dp_groups",
    requires="deepspeed>=0.12.4,<0.13",
    devices="cpu",
    why="the flat weights of ZeRO 1 and 2 require a gradient in these releases, and gloo gathers into views of them: "
    'the first step ends in "Output 0 of Split is a view and is being modified inplace"',
    until="support for DeepSpeed 0.12 ends",
    without="crash",
    symptom=Symptom(reason="the fault is in the passed buffer, which DeepSpeed 0.13 flattens from copies"),
)
def all_gather_without_grad(call: Call) -> Any:
    """Gather the updated weights outside autograd."""
    import torch

    with torch.no_grad():
        return call.proceed()
