"""Multi-tensor operations of amp_C, and apex's MultiTensorApply; this module is imported on the first use of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..deepspeed_runtime.jit_builds import TorchFusedAdam

NAMES = ("multi_tensor_scale", "multi_tensor_l2norm", "multi_tensor_adam")
multi_tensor_adam = TorchFusedAdam.multi_tensor_adam


def multi_tensor_scale(
    chunk_size: int, noop_flag: Any, tensor_lists: Sequence[Sequence[Any]], scale: float | torch.Tensor
) -> None:
    """Copy each tensor of the first list, scaled, to the second list; set the flag if a value is NaN or Inf.

    Source: NVIDIA/apex@6424da3b csrc/multi_tensor_scale_kernel.cu.
    """
    sources, targets = (list(tensors) for tensors in tensor_lists)
    if not sources:
        return
    with torch.no_grad():
        _flag_nan_and_inf(noop_flag, sources)
        if all(one is other for one, other in zip(sources, targets, strict=True)):
            torch._foreach_mul_(targets, scale)
        else:
            torch._foreach_copy_(targets, sources if scale == 1.0 else torch._foreach_mul(sources, scale))


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Any, tensor_lists: Sequence[Sequence[Any]], per_tensor: bool = False
) -> tuple[Any, Any]:
    """Return the 2-norm over all tensors (fp32 [1]), and the norm of each tensor (fp32 [N]) or an empty tensor.

    Source: NVIDIA/apex@6424da3b csrc/multi_tensor_l2norm_kernel.cu.
    """
    tensors = list(tensor_lists[0])
    if not tensors:
        nothing = torch.zeros(1, dtype=torch.float32, device=noop_flag.device)
        return nothing, nothing[:0]
    with torch.no_grad():
        norms = torch.stack([norm.float() for norm in _norms(tensors, 2.0)])
        return norms.norm(2.0).reshape(1), norms if per_tensor else norms[:0]


class MultiTensorApply:
    """Calls a multi-tensor operation; ``chunk_size`` is passed to the operation and has no effect."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Callable[..., Any], noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


def _flag_nan_and_inf(flag: Any, tensors: list[Any]) -> None:
    largest = torch.stack([norm.float() for norm in _norms(tensors, float("inf"))])
    flag.masked_fill_((~torch.isfinite(largest)).any().to(flag.device), 1)


def _norms(tensors: list[Any], order: float) -> Any:
    """Return the norm of each tensor; fp16 and bf16 are accumulated in fp32, because a 16-bit norm overflows."""
    wide = [tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]
    return torch._foreach_norm([tensor.flatten() if tensor.numel() else tensor.new_zeros(1) for tensor in wide], order)
