"""Breakdown of a rank's device memory at each new peak of torch_npu's allocator; only ranks import this module."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_npu
import wrapt
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ascend_adapt.emulation import library, location, report
from ascend_adapt.emulation.full_size import ending, steps, work

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer states"
ACTIVATIONS, BACKWARD, OTHER = "activations", "backward buffers", "other buffers"
WORKSPACE, COMMUNICATION = "optimizer workspace", "communication buffers"

DEVICE_SIZES = (32 << 30, 64 << 30)
"""Memory of an Ascend 910A, and of a 910B2 or 910B3, in bytes."""

_NOTED = 1 << 20
"""Minimum bytes of an allocation that is inspected; torch_npu's statistics count smaller allocations."""
_GROWTH = 1.02
"""The breakdown is taken each time the peak has grown by this factor."""
_MOST_STEPS = 1000
_ALLOCATING = ("empty.memory_format", "empty_strided", "empty_like", "new_empty_strided")

_parameters: dict[int, weakref.ref[torch.Tensor]] = {}
_optimizers: list[weakref.ref[Any]] = []
_purpose: dict[int, tuple[str, location.Line]] = {}
_since_backward: list[int] = []
"""Addresses allocated between a backward pass and what follows: a step of the optimizer, or the next forward pass."""
_library: list[Any] = []
_state: dict[str, Any] = {"in_optimizer": False, "is_after_backward": False, "looks": False, "steps": 0}


@dataclass
class Usage:
    """Memory use of one device."""

    peak: int = 0
    """Bytes allocated when the breakdown was taken; the statistics have the exact peak."""
    by_purpose: dict[str, int] = field(default_factory=dict)
    by_line: dict[str, int] = field(default_factory=dict)
    """Lines of the user's code that allocated most of the activations and buffers, with their bytes."""
    steps: list[dict[str, int]] = field(default_factory=list)
    """For each optimizer step: bytes allocated, bytes reserved, and the peak of allocated bytes so far."""
    first_beyond: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Maps a device size to the first allocation that exceeds it: bytes, line, purpose."""
    beyond_int32: dict[str, str] = field(default_factory=dict)
    """Maps a line to the shape of a tensor with 2^31 elements or more."""
    refused: dict[str, Any] | None = None
    """First allocation that torch_npu refused."""


usage: dict[int, Usage] = {}


def watch(write: Callable[[], None]) -> None:
    """Inspect every allocation from now on; call ``write`` for the report when the process ends after its steps."""
    _state["write"] = write
    _library.append(torch.library.Library("aten", "IMPL"))
    for name in _ALLOCATING:
        original = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")
        torch.library.Library.impl(
            _library[-1], name, _noting(original), "PrivateUse1", with_keyset=True, allow_override=True
        )
    register_module_parameter_registration_hook(_see_tensor)
    register_module_buffer_registration_hook(_see_tensor)
    register_module_forward_pre_hook(_begin_forward)
    register_optimizer_step_pre_hook(_begin_step)
    register_optimizer_step_post_hook(_end_step)
    wrapt.register_post_import_hook(_watch_native, "ascend_adapt.native.step.optimizer")


def communication_bytes(device: int) -> int:
    """Return the bytes that HCCL's communicators have allocated on a device, outside torch_npu's allocator."""
    return int(library.statistics().device_bytes[device]) - _bytes("reserved_bytes", device)


def to_json(device: int) -> dict[str, Any]:
    """Return the facts about a device as JSON data; sizes in bytes."""
    found = usage.setdefault(device, Usage())
    by_purpose = {**found.by_purpose, COMMUNICATION: communication_bytes(device)}
    return {
        "allocated_peak": torch.npu.max_memory_allocated(device),
        "reserved_peak": torch.npu.max_memory_reserved(device),
        "by_purpose": by_purpose,
        "by_line": found.by_line,
        "steps": found.steps,
        "first_beyond": found.first_beyond,
        "beyond_int32": found.beyond_int32,
        "refused": found.refused,
    }


def _noting(original: Any) -> Any:
    def allocate(keyset: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            tensor: torch.Tensor = original.call_boxed(keyset, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            _refuse(error)
            raise
        if tensor.device.type == "npu":
            _note(tensor)
        return tensor

    return allocate


def _note(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if size < _NOTED:
        return
    purpose, line = _purpose_now(), location.of_caller()
    _purpose[storage.data_ptr()] = purpose, line
    if purpose == WORKSPACE and not _state["in_optimizer"]:
        _since_backward.append(storage.data_ptr())
    if _state["looks"]:
        return  # This tensor was created by the inspection itself.
    device = tensor.device.index
    found = usage.setdefault(device, Usage())
    if tensor.numel() >= 1 << 31:
        found.beyond_int32[str(line)] = str(list(tensor.shape))
    allocated = _bytes("allocated_bytes", device)
    if allocated > found.peak * _GROWTH:
        _state["looks"] = True
        try:
            _look(device, found, allocated)
        finally:
            _state["looks"] = False
    if len(found.first_beyond) < len(DEVICE_SIZES) and allocated > DEVICE_SIZES[0] // 2:
        used = allocated + communication_bytes(device)
        for limit in DEVICE_SIZES:
            if used > limit and str(limit) not in found.first_beyond:
                found.first_beyond[str(limit)] = {"bytes": size, "line": str(line), "purpose": purpose}


def _bytes(statistic: str, device: int) -> int:
    """Return a current statistic of torch_npu's allocator."""
    # torch.npu.memory_allocated first flattens all statistics into one table, which takes ten times as long.
    return int(torch_npu._C._npu_memoryStats(device)[statistic]["all"]["current"])


def _refuse(error: BaseException) -> None:
    device = torch.npu.current_device()
    found = usage.setdefault(device, Usage())
    if found.refused is None:
        found.refused = {
            "line": str(location.of_caller()),
            "purpose": _purpose_now(),
            "message": str(error).splitlines()[0],
            "allocated": torch.npu.memory_allocated(device),
        }


def _purpose_now() -> str:
    """Return the purpose of a new tensor, as determined by the phase of the step."""
    if _state["in_optimizer"]:
        return WORKSPACE
    if not report.tally.flops:
        return OTHER  # No forward pass has begun.
    if _in_backward():
        _state["is_after_backward"] = True
        # Recomputed layers run inside the backward pass, with gradients enabled.
        return ACTIVATIONS if torch.is_grad_enabled() else BACKWARD
    return WORKSPACE if _state["is_after_backward"] else ACTIVATIONS


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _begin_forward(module: torch.nn.Module, args: Any) -> None:
    """Note that allocations since the backward pass are activations, such as those that a pipeline stage receives."""
    if _state["is_after_backward"] and not _in_backward() and not _state["in_optimizer"]:
        _state["is_after_backward"] = False
        for address in _since_backward:
            _purpose[address] = ACTIVATIONS, _purpose[address][1]
        _since_backward.clear()


def _look(device: int, found: Usage, allocated: int) -> None:
    """Take the breakdown of the memory in use."""
    known = {**_purpose_of_tensors()}
    by_purpose: Counter[str] = Counter()
    by_line: Counter[str] = Counter()
    snapshot = torch.npu.memory_snapshot()
    for segment in snapshot:
        if segment["device"] != device:
            continue
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                continue
            address, size = block["address"], block["size"]
            purpose, line = _purpose.get(address, (OTHER, location.UNKNOWN))
            purpose = known.get(address, purpose)
            by_purpose[purpose] += size
            if purpose not in (WEIGHTS, GRADIENTS, OPTIMIZER) and line.file:
                by_line[f"{line} ({purpose})"] += size
    found.peak = allocated
    found.by_purpose = dict(by_purpose)
    found.by_line = dict(by_line.most_common(8))


def _purpose_of_tensors() -> dict[int, str]:
    """Map the address of each storage of weights, gradients and optimizer states to its purpose."""
    purposes: dict[int, str] = {}

    def put(value: Any, purpose: str) -> None:
        for tensor in _inner(value) if isinstance(value, torch.Tensor) else ():
            if tensor.device.type == "npu":
                purposes.setdefault(tensor.untyped_storage().data_ptr(), purpose)

    for reference in list(_parameters.values()):
        parameter = reference()
        if parameter is not None:
            put(parameter, WEIGHTS)
            put(parameter.grad, GRADIENTS)
            for name in ("main_grad", "narrow_gradient"):  # Attributes of Megatron and of the native trainer.
                put(getattr(parameter, name, None), GRADIENTS)
    for optimizer in filter(None, (reference() for reference in _optimizers)):
        parameters, states = _of_optimizer(optimizer)
        for parameter in parameters:
            put(parameter, OPTIMIZER)  # Master weights, unless the tensor is a parameter of a module.
            put(parameter.grad, GRADIENTS)
        for state in states:
            for value in state.values() if isinstance(state, dict) else ():
                put(value, OPTIMIZER)
    return purposes


def _inner(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that have memory; a DTensor, such as a parameter of FSDP2, only wraps such a tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # Skip the tensor of its device mesh.
            yield from _inner(part)


def _of_optimizer(optimizer: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the tensors that an optimizer updates, and its states."""
    if isinstance(optimizer, Optimizer):
        return [one for group in optimizer.param_groups for one in group["params"]], list(optimizer.state.values())
    return [one.local for one in optimizer.parameters], optimizer.states  # An optimizer of the native trainer.


def _watch_native(module: Any) -> None:
    def step(call: Any, optimizer: Any, args: Any, named: Any) -> Any:
        _begin_step(optimizer)
        result = call(*args, **named)
        report.step()
        _end_step(optimizer)
        return result

    def create(call: Any, optimizer: Any, args: Any, named: Any) -> None:
        call(*args, **named)
        _optimizers.append(weakref.ref(optimizer))  # This optimizer has states before its first step.

    wrapt.wrap_function_wrapper(module, "Optimizer.step", step)
    wrapt.wrap_function_wrapper(module, "Optimizer.__init__", create)


def _see_tensor(module: torch.nn.Module, name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        _parameters[id(tensor)] = weakref.ref(tensor)


def _begin_step(optimizer: Any, *call: Any) -> None:
    _state["in_optimizer"] = True
    _since_backward.clear()  # DeepSpeed's ZeRO converts and scales gradients before it calls the optimizer.
    if all(reference() is not optimizer for reference in _optimizers):
        _optimizers.append(weakref.ref(optimizer))


def _end_step(optimizer: Any, *call: Any) -> None:
    # DeepSpeed's ZeRO calls its optimizer once for each group of parameters; the last call of a step is recorded.
    has_ended = _state["steps"] == report.tally.steps
    _state.update(in_optimizer=False, steps=report.tally.steps)
    for device in range(torch.npu.device_count()):
        if device in usage and len(usage[device].steps) < _MOST_STEPS:
            if has_ended and usage[device].steps:
                usage[device].steps.pop()
            usage[device].steps.append(
                {
                    "allocated": torch.npu.memory_allocated(device),
                    "reserved": torch.npu.memory_reserved(device),
                    "peak": torch.npu.max_memory_allocated(device),
                }
            )
    if optimizer is _optimizers[0]():
        work.end_step(has_ended)
        if len(work.steps) == steps() and not _state.get("is_ending"):
            _state["is_ending"] = True
            ending.end(steps(), _state["write"])
