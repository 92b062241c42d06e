"""torch.cuda.comm on a CPU, where all "devices" share the host's memory. Source: torch 2.13 nn/parallel/comm.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap


def _on_host(function: Callable[..., Any]) -> Patch:
    """Return a patch that calls ``function`` by keyword with the arguments of torch's function of the same name."""

    @wrap(
        f"torch.nn.parallel.comm:{function.__name__}",
        name=f"{function.__name__}_between_devices",
        devices="cpu",
        why="CPU builds of torch have no copies between GPUs",
        until="torch runs CUDA code on a CPU",
        without="crash",
        symptom=Symptom(reason="the fault is in the callers"),
    )
    def on_host(call: Call) -> Any:
        return function(**{name: call[name] for name in inspect.signature(function).parameters})

    return on_host


def broadcast(tensor: Any, devices: Any, out: Any) -> Any:
    """Return a copy of the tensor for each device."""
    return [one.copy_(tensor) for one in out] if out is not None else [tensor.clone() for _ in devices]


def broadcast_coalesced(tensors: Any, devices: Any) -> Any:
    """Return copies of all tensors for each device."""
    return [[tensor.clone() for tensor in tensors] for _ in devices]


def reduce_add(inputs: Any) -> Any:
    """Return the sum of the tensors."""
    return sum(inputs[1:], inputs[0].clone())


def scatter(tensor: Any, devices: Any, chunk_sizes: Any, dim: int, out: Any) -> Any:
    """Return the tensor's pieces along ``dim``, one for each device."""
    import torch

    sizes = [one.shape[dim] for one in out] if out is not None else chunk_sizes
    pieces = tensor.chunk(len(devices), dim) if sizes is None else torch.split(tensor, list(sizes), dim)
    return tuple(pieces) if out is None else tuple(one.copy_(piece) for one, piece in zip(out, pieces, strict=True))


def gather(tensors: Any, dim: int, out: Any) -> Any:
    """Return the tensors concatenated along ``dim``."""
    import torch

    return torch.cat(list(tensors), dim, out=out)


PATCHES = [_on_host(function) for function in (broadcast, broadcast_coalesced, reduce_add, scatter, gather)]
