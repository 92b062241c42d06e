"""Tensors of the emulated device as CPU tensors over the same bytes; loaded in ranks only."""

from __future__ import annotations

import torch

from ascend_adapt.emulation import library

_pending = library.pending()
_CPU = torch.device("cpu")
# While a model is made below ZeRO-3, DeepSpeed puts constructors of the device in the place of torch's own.
_empty = torch.empty


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the memory of an npu tensor: nothing is copied, and writing to one changes the other.

    Shape, strides, storage offset, and the conjugate and negative bits are kept, so aliases of views of one tensor
    overlap as the views do. The memory lives as long as the alias. A tensor that is on no npu is returned as it is.

    Waits for what is pending on the current stream of the tensor's device, as a kernel comes after what was launched
    before it.

    Raises:
        RuntimeError: a collective that was pending has failed.
    """
    if tensor.device.type != "npu":
        return tensor
    if _pending.value:
        library.settle(torch.npu.current_stream(tensor.device).npu_stream)
    memory = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), _CPU, memory.nbytes())
    # The storage has no deleter of its own. Its Python object lives as long as it does, and so do attributes of that.
    storage.owner = memory
    # Of the class: Megatron's parameters carry an attribute ``stride`` of their own, a number.
    strides = torch.Tensor.stride(tensor)
    alias = empty_on_cpu(tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), strides)
    if tensor.is_conj():
        alias = torch._conj(alias)
    if tensor.is_neg():
        alias = torch._neg_view(alias)
    return alias


def empty_on_cpu(dtype: torch.dtype) -> torch.Tensor:
    """Return an empty CPU tensor, whatever stands in the place of torch.empty."""
    return _empty(0, dtype=dtype, device=_CPU)


def as_npu(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return an npu tensor with the values, shape and strides of a CPU tensor, in memory of torch_npu's own allocator.

    Raises:
        RuntimeError: torch_npu's out-of-memory error.
    """
    result = result.resolve_conj().resolve_neg()
    moved = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype, device=device)
    as_cpu(moved).copy_(result)
    return moved
