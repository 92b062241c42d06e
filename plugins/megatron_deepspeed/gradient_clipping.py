"""Gradient clipping of deepspeedai's optimizers, used without DeepSpeed's engine, on devices other than CUDA."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, replace

from ..code_bases import MEGATRON_DEEPSPEED


@replace(
    "megatron.optimizer.clip_grads:clip_grad_norm_fp32",
    host=MEGATRON_DEEPSPEED,
    devices=("cpu", "npu"),
    bodies="ea0b242a4aa9cac0",
    name="clip_grad_norm_off_cuda",
    why="on devices other than CUDA, it compares with a type name that CPU tensors lack, takes the norm of a list, "
    "and moves a Python number to a device: each of these raises an error",
    until="the code base clips on every device as on CUDA",
    without="crash",
    symptom=Symptom("torch.norm(grads_for_norm, p=2.0)"),
)
def clip_grad_norm_off_cuda(
    parameters: Any, grads_for_norm: Any, max_norm: float, norm_type: float = 2, model_parallel_group: Any = None
) -> float:
    """Clip gradients in place to ``max_norm`` over all ranks of the group; return the norm before clipping.

    Source (the branch for CUDA): deepspeedai/Megatron-DeepSpeed@4efb479d megatron/optimizer/clip_grads.py.
    """
    import torch

    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    measured = [grads_for_norm] if isinstance(grads_for_norm, torch.Tensor) else list(grads_for_norm)
    device = next(iter([*measured, *parameters])).device
    norms = torch.stack(torch._foreach_norm(measured or [torch.zeros(1, device=device)], norm_type))
    is_largest = norm_type == float("inf")
    total = norms.max() if is_largest else norms.pow(norm_type).sum()
    reduction = torch.distributed.ReduceOp.MAX if is_largest else torch.distributed.ReduceOp.SUM
    torch.distributed.all_reduce(total, op=reduction, group=model_parallel_group)
    norm = float(total.item() if is_largest else total.item() ** (1 / norm_type))
    if (factor := max_norm / (norm + 1e-6)) < 1:
        torch._foreach_mul_([one.grad.detach() for one in parameters if one.grad is not None], factor)
    return norm
