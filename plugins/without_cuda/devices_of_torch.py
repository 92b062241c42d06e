"""Patches for torch functions that take a device or a backend and bypass function modes or torch_npu's transfer.

Without CUDA, each of these calls would fail, so device-aware code never makes such a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ascend_adapt import Patch, Symptom, wrap

if TYPE_CHECKING:
    from ascend_adapt.patches.declare.terms import Terms


def _terms(name: str, devices: str = "cpu", requires: tuple[str, ...] = ()) -> Terms:
    return {
        "name": name,
        "devices": devices,
        "requires": requires,
        "why": "CUDA code requests a CUDA device or NCCL, but this host has neither",
        "until": "torch runs CUDA code on a CPU",
        "without": "crash",
        "symptom": Symptom(reason="the fault is in the callers"),
    }


def _with(
    name: str, target: str, on: str = "cpu", requires: tuple[str, ...] = (), **changes: Callable[[Any], Any]
) -> Patch:
    """Return a patch that changes the named arguments of each call of ``target``, on the device ``on``."""

    @wrap(target, **_terms(name, on, requires))
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
    """Return "cpu" for "cuda", because meshes take the name of a device type, not a device."""
    return "cpu" if device_type == "cuda" else device_type


def _gloo(backend: Any) -> Any:
    """Return gloo for NCCL and HCCL, also inside "cpu:gloo,cuda:nccl"."""
    return "gloo" if isinstance(backend, str) and ("nccl" in backend or "hccl" in backend) else backend


def _host(device: Any) -> Any:
    """Return the CPU without an index, because FSDP rejects one."""
    import torch

    return torch.device("cpu")


def npu(device: Any) -> Any:
    """Return the NPU for a CUDA device given as torch.device or string; return other values unchanged."""
    import torch

    name = str(device) if isinstance(device, (str, torch.device)) else ""
    return torch.device(name.replace("cuda", "npu")) if name.partition(":")[0] == "cuda" else device


def _index(device: Any) -> Any:
    """Return the index of a device given as torch.device or string; return other values unchanged."""
    import torch

    return torch.device(device).index if isinstance(device, (str, torch.device)) else device


def _npus(devices: Any) -> Any:
    return None if devices is None else [npu(device) for device in devices]


def _none(value: Any) -> None:
    """Omit the argument."""


def _detached(tensor: Any) -> Any:
    """Return the same memory without its gradient, because autograd would record what gloo does with views of it."""
    return tensor.detach() if getattr(tensor, "requires_grad", False) else tensor


def _no_devices(devices: Any) -> list[Any] | None:
    return None if devices is None else []


def _accepted(hook: Any) -> Any:
    """Return torch's bf16 compression hooks under another name, because torch rejects these names without NCCL.

    gloo and HCCL reduce bf16 as well. torch only checks the returned function; it registers the hook itself.
    """
    if not getattr(hook, "__name__", "").startswith("bf16_compress_"):
        return hook

    @functools.wraps(hook)
    def accepted(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    accepted.__name__ = "accepted"
    return accepted


@wrap("torch.nn.modules.module:Module.to", **_terms("modules"))
def modules(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Map the device of Module.to, given first or by keyword; torch rejects a bare index without an accelerator."""
    from ._cuda_means_cpu import on_host

    if "device" in kwargs:
        kwargs = {**kwargs, "device": on_host(kwargs["device"])}
    return wrapped(*(on_host(arg) for arg in args[:1]), *args[1:], **kwargs)


@wrap("torch.storage:_StorageBase.cuda", **_terms("storages"))
def storages(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the storage unchanged; ``map_location=lambda storage, place: storage.cuda(0)`` is common."""
    return instance


_C10D = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
PATCHES = [
    # torch puts the mode of `with torch.device("cuda")` underneath all other modes.
    _with("device_contexts", "torch.utils._device:DeviceContext.__init__", device=_on_host),
    _with("process_groups", f"{_C10D}:init_process_group", backend=_gloo, device_id=_none, pg_options=_none),
    _with("new_groups", f"{_C10D}:new_group", backend=_gloo, device_id=_none, pg_options=_none),
    _with("barriers", f"{_C10D}:barrier", device_ids=_none),
    _with(
        "gathered_tensors_with_gradients",
        f"{_C10D}:all_gather_into_tensor",
        output_tensor=_detached,
        input_tensor=_detached,
    ),
    _with(
        "gathered_single_tensors_with_gradients",
        f"{_C10D}:all_gather_single",
        requires=("torch>=2.13",),
        output_tensor=_detached,
        input_tensor=_detached,
    ),
    _with(
        "scattered_tensors_with_gradients",
        f"{_C10D}:reduce_scatter_tensor",
        output=_detached,
        input=_detached,
    ),
    _with(
        "scattered_single_tensors_with_gradients",
        f"{_C10D}:reduce_scatter_single",
        requires=("torch>=2.13",),
        output=_detached,
        input=_detached,
    ),
    # The host and its only device share one generator, which fork_rng always keeps.
    _with("fork_rng_on_cpu", "torch.random:fork_rng", devices=_no_devices, device_type=_type_on_host),
    _with("meshes", "torch.distributed.device_mesh:init_device_mesh", device_type=_type_on_host),
    _with("device_meshes", "torch.distributed.device_mesh:DeviceMesh.__init__", device_type=_type_on_host),
    _with(
        "ddp_device_ids",
        f"{_DDP}.__init__",
        device_ids=_none,
        output_device=_none,
    ),
    _with("ddp_bf16_hooks", f"{_DDP}._check_comm_hook", hook=_accepted),
    _with("ddp_bf16_hooks_on_npus", f"{_DDP}._check_comm_hook", on="npu", hook=_accepted),
    _with(
        "fsdp_device_id",
        "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.__init__",
        device_id=_host,
        cpu_offload=_none,
    ),
    _with("nested_tensors", "torch.nested:nested_tensor", device=_on_host),
    _with("nested_tensors_on_npus", "torch.nested:nested_tensor", on="npu", device=npu),
    # transfer_to_npu makes Tensor.cuda and Module.cuda those of the NPU, which reject "cuda:0" as their argument.
    _with("tensor_moves", "torch.utils.backend_registration:_normalization_device", on="npu", device=npu),
    _with("module_moves", "torch_npu.utils._module:npu", on="npu", requires=("torch_npu>=2.1",), device=_index),
    _with("fork_rng_on_npus", "torch.random:fork_rng", on="npu", devices=_npus),
]


def _over_gloo(name: str, output: str, requires: tuple[str, ...] = ()) -> Patch:
    """Return a patch that computes AVG and PREMUL_SUM of a collective over gloo, which supports sums."""

    @wrap(f"{_C10D}:{name}", **_terms(f"{name}_over_gloo", requires=requires))
    def call(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch.distributed as dist

        given = inspect.signature(wrapped).bind(*args, **kwargs)
        op: Any = given.arguments.get("op")
        group = given.arguments.get("group")
        is_average = op == dist.ReduceOp.AVG
        if not (is_average or op == dist.ReduceOp.PREMUL_SUM) or dist.get_backend(group) != "gloo":
            return wrapped(*args, **kwargs)
        is_asynchronous = given.arguments.get("async_op", False)
        given.arguments.update(op=dist.ReduceOp.SUM, async_op=False)
        wrapped(*given.args, **given.kwargs)
        result = _detached(given.arguments[output])
        result.div_(dist.get_world_size(group)) if is_average else result.mul_(op.factor)
        return Done() if is_asynchronous else None

    return call


class Done:
    """Work handle of a completed collective."""

    def wait(self, timeout: Any = None) -> bool:
        """Return True immediately, because the collective has completed."""
        return True

    def is_completed(self) -> bool:
        """Return True, because the collective has completed."""
        return True


SCALED_SUMS = [
    _over_gloo("all_reduce", "tensor"),
    _over_gloo("reduce", "tensor"),
    _over_gloo("reduce_scatter", "output"),
    _over_gloo("reduce_scatter_tensor", "output"),
    # FSDP2 calls it with a factor that the program sets (set_gradient_divide_factor).
    _over_gloo("reduce_scatter_single", "output", requires=("torch>=2.13",)),
]
