"""Backends by their right name, and gradients by their type."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Symptom, replace, wrap

logger = logging.getLogger("ascend_adapt")


@wrap(
    "deepspeed.comm.comm:init_distributed",
    requires="deepspeed>=0.8",
    devices=("cpu", "npu"),
    why="code written for GPUs asks for 'nccl', which this device does not have",
    until="callers ask for no backend",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers"),
)
def backend_of_the_device(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the accelerator's own backend where 'nccl' is asked for."""
    from deepspeed.accelerator import get_accelerator

    asked = args[0] if args else kwargs.get("dist_backend")
    if asked == "nccl":
        backend = get_accelerator().communication_backend_name()
        logger.info("ascend_adapt: init_distributed was asked for 'nccl', takes %r", backend)
        args, kwargs = args[1:], {key: value for key, value in kwargs.items() if key != "dist_backend"}
        return wrapped(backend, *args, **kwargs)
    return wrapped(*args, **kwargs)


@replace(
    "deepspeed.runtime.engine:split_half_float_double_sparse",
    requires="deepspeed>=0.8.1,<0.13",
    devices="cpu",
    why="gradients are told apart by names such as torch.cpu.FloatTensor, which a CPU tensor does not have",
    until="support for DeepSpeed 0.12 ends",
    without="crash",
    symptom=Symptom("'torch.{}.FloatTensor'.format(device_type)"),
)
def gradients_by_type(tensors: list[Any]) -> list[tuple[str, list[Any]]]:
    """Return (type, its gradients) for each type in the order half, float, double, bfloat16, sparse, then others."""
    order = ["torch.HalfTensor", "torch.FloatTensor", "torch.DoubleTensor", "torch.BFloat16Tensor"]
    types = sorted({t.type() for t in tensors}, key=lambda kind: order.index(kind) if kind in order else len(order))
    return [(kind, [t for t in tensors if t.type() == kind]) for kind in types]


@replace(
    "deepspeed.runtime.zero.stage_1_and_2:split_half_float_double",
    requires="deepspeed>=0.8.1,<0.19.8",
    devices="cpu",
    why="ZeRO 1 tells gradients apart by names such as torch.cpu.FloatTensor, which a CPU tensor does not have: every "
    "rank silently keeps its own gradients, nothing is averaged",
    until="support for DeepSpeed 0.19.7 ends",
    without="wrong numbers",
    symptom=Symptom("'torch.{}.FloatTensor'.format(device_type)"),
)
def zero_gradients_by_type(tensors: list[Any]) -> list[list[Any]]:
    """Return the tensors of each type together, in the order of first occurrence."""
    types = dict.fromkeys(t.type() for t in tensors)
    return [[t for t in tensors if t.type() == kind] for kind in types]
