"""Patches of torch functions that take a device or a backend and bypass function modes: on a CPU, "cuda" is the CPU.

Without CUDA each of these calls would fail, so device-aware code never makes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ascend_adapt import Patch, Symptom, wrap

if TYPE_CHECKING:
    from ascend_adapt.patches.declare.terms import Terms


def _terms(name: str) -> Terms:
    return {
        "name": name,
        "devices": "cpu",
        "why": "CUDA code names a CUDA device or NCCL, and this host has neither",
        "until": "torch runs CUDA code on a CPU",
        "without": "crash",
        "symptom": Symptom(reason="the fault is in the callers"),
    }


def _with(name: str, target: str, **changes: Callable[[Any], Any]) -> Patch:
    """Return a patch that changes some arguments of each call of ``target``, by name."""

    @wrap(target, **_terms(name))
    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = inspect.signature(wrapped).bind(*args, **kwargs)
        for argument, change in changes.items():
            if argument in given.arguments:
                given.arguments[argument] = change(given.arguments[argument])
        return wrapped(*given.args, **given.kwargs)

    return call


def _on_host(device: Any) -> Any:
    from ._cuda_means_cpu import on_host

    return on_host(device)


def _type_on_host(device_type: Any) -> Any:
    """Return "cpu" for "cuda": meshes take the name of a type, not a device."""
    return "cpu" if device_type == "cuda" else device_type


def _gloo(backend: Any) -> Any:
    """Return gloo for NCCL and HCCL, also as part of "cpu:gloo,cuda:nccl"."""
    return "gloo" if isinstance(backend, str) and ("nccl" in backend or "hccl" in backend) else backend


def _host(device: Any) -> Any:
    """Return the CPU without an index, which FSDP refuses."""
    import torch

    return torch.device("cpu")


def _none(value: Any) -> None:
    """Omit the argument."""


@wrap("torch.nn.modules.module:Module.to", **_terms("modules"))
def modules(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Map the device, given first or by keyword; torch rejects a bare index without an accelerator."""
    from ._cuda_means_cpu import on_host

    if "device" in kwargs:
        kwargs = {**kwargs, "device": on_host(kwargs["device"])}
    return wrapped(*(on_host(arg) for arg in args[:1]), *args[1:], **kwargs)


_C10D = "torch.distributed.distributed_c10d"
PATCHES = [
    # torch puts the mode of `with torch.device("cuda")` underneath all others.
    _with("device_contexts", "torch.utils._device:DeviceContext.__init__", device=_on_host),
    _with("process_groups", f"{_C10D}:init_process_group", backend=_gloo, device_id=_none, pg_options=_none),
    _with("new_groups", f"{_C10D}:new_group", backend=_gloo, device_id=_none, pg_options=_none),
    _with("barriers", f"{_C10D}:barrier", device_ids=_none),
    _with("meshes", "torch.distributed.device_mesh:init_device_mesh", device_type=_type_on_host),
    _with("device_meshes", "torch.distributed.device_mesh:DeviceMesh.__init__", device_type=_type_on_host),
    _with(
        "data_parallel",
        "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
        device_ids=_none,
        output_device=_none,
    ),
    _with(
        "sharded_data_parallel",
        "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.__init__",
        device_id=_host,
    ),
]


def _averaging(name: str, output: str) -> Patch:
    """Return a patch that lets a collective average over gloo, which only sums."""

    @wrap(f"{_C10D}:{name}", **_terms(f"average_of_{name}"))
    def call(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch.distributed as dist

        given = inspect.signature(wrapped).bind(*args, **kwargs)
        if given.arguments.get("op") != dist.ReduceOp.AVG or dist.get_backend(given.arguments.get("group")) != "gloo":
            return wrapped(*args, **kwargs)
        is_asynchronous = given.arguments.get("async_op", False)
        given.arguments.update(op=dist.ReduceOp.SUM, async_op=False)
        wrapped(*given.args, **given.kwargs)
        given.arguments[output].div_(dist.get_world_size(given.arguments.get("group")))
        return _Done() if is_asynchronous else None

    return call


class _Done:
    """Work handle of a completed collective."""

    def wait(self, timeout: Any = None) -> bool:
        """Return True."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


AVERAGES = [
    _averaging(name, output)
    for name, output in (("all_reduce", "tensor"), ("reduce", "tensor"), ("reduce_scatter_tensor", "output"))
]
