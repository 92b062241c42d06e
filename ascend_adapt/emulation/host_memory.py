"""CPU tensors that share memory with tensors on the emulated device; only ranks import this module."""

from __future__ import annotations

import torch

from ascend_adapt.emulation import library
from ascend_adapt.emulation.full_size import values

_pending = library.pending()
_CPU = torch.device("cpu")
# While a model is built inside deepspeed.zero.Init, DeepSpeed replaces torch's constructors with those of the device.
_empty = torch.empty


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor that shares memory with an npu tensor, so that writing to one changes the other.

    Shape, strides, storage offset, and the conjugate and negative bits are kept, so aliases of views of one tensor
    overlap as the views do. The memory lives as long as the alias. A tensor on another device is returned unchanged.

    Wait for the pending tasks of the current stream of the tensor's device, because a kernel would run after them.

    Raises:
        RuntimeError: a pending collective has failed.
    """
    if tensor.device.type != "npu":
        return tensor
    if _pending.value:
        library.settle(torch.npu.current_stream(tensor.device).npu_stream)
    memory = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), _CPU, memory.nbytes())
    # The storage has no deleter. Its Python object, with all attributes, lives as long as the storage.
    storage.owner = memory
    # Call the method of the class: Megatron's parameters have an attribute ``stride`` that is a number.
    strides = torch.Tensor.stride(tensor)
    try:
        alias = empty_on_cpu(tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), strides)
    except RuntimeError:
        raise RuntimeError(
            f"a tensor {list(tensor.size())} {str(tensor.dtype).removeprefix('torch.')}: reaches beyond its storage of "
            f"{memory.nbytes()} bytes, which was shrunk or freed (as FSDP does) — gather it again before it is used; a "
            "real NPU would read unrelated memory"
        ) from None
    if tensor.is_conj():
        alias = torch._conj(alias)
    if tensor.is_neg():
        alias = torch._neg_view(alias)
    return alias


def empty_on_cpu(dtype: torch.dtype) -> torch.Tensor:
    """Return an empty CPU tensor, even if torch.empty has been replaced."""
    return _empty(0, dtype=dtype, device=_CPU)


def as_shape(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of this shape, dtype and strides; a small one keeps its values."""
    return values.as_meta(tensor, as_cpu(tensor) if values.hold(tensor) else None)


def as_npu(result: torch.Tensor, device: torch.device, operator: str = "") -> torch.Tensor:
    """Return an npu tensor with the values, shape and strides of a CPU tensor, allocated by torch_npu.

    A meta tensor (a result at full size) has no values; a small result is filled with a stand-in.

    Raises:
        RuntimeError: torch_npu's out-of-memory error.
    """
    result = result.resolve_conj().resolve_neg()
    moved = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype, device=device)
    if result.is_meta:
        fill_stand_in(moved, operator)
    else:
        with values.computing:
            as_cpu(moved).copy_(result)
    return moved


def fill_stand_in(tensor: torch.Tensor, operator: str) -> None:
    """Fill a result with a stand-in, if its operator had no values but tensors of its size hold values."""
    if values.hold(tensor):
        as_cpu(tensor).fill_(values.stand_in(operator, tensor.dtype))
