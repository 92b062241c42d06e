"""Fixes and faster operations for Megatron-core's optimizer without apex and TransformerEngine."""

from __future__ import annotations

import inspect
from typing import Any

from ascend_adapt import Call, Symptom, replace, wrap

from .. import call_arguments
from .releases import HOST, REQUIRES


@replace(
    "megatron.core.utils:local_multi_tensor_l2_norm",
    bodies="39eef6a72fd2fe9b",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="without apex the gradient norm copies one value per parameter from the device",
    until="Megatron-core computes the gradient norm on the device without apex",
    without="slower",
    symptom=Symptom("torch.tensor(l2)"),
)
def grad_norm_on_device(
    chunk_size: int, noop_flag: Any, tensor_lists: list[list[Any]], per_tensor: Any, *args: Any
) -> tuple[Any, None]:
    """Return the 2-norm over all tensors (fp32 [1]) and None, as Megatron-core does."""
    return norm_of([tensor for tensors in tensor_lists for tensor in tensors]).reshape(1), None


def norm_of(tensors: list[Any]) -> Any:
    """Return the L2 norm over all tensors, fp32 [], on their device."""
    import torch

    from ascend_adapt.kernels import l2_norms

    by_dtype: dict[Any, list[Any]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    return torch.linalg.vector_norm(torch.cat([l2_norms(alike) for alike in by_dtype.values()])).float()


@wrap(
    "megatron.core.optimizer.clip_grads:get_grad_norm_fp32",
    bodies=("5241013a772d0322", "1e4f4fef6e06f9fa"),
    requires="megatron-core>=0.17",
    host=HOST,
    devices="cuda",
    why="without TransformerEngine the host reads the norm before it clips, so the device waits until the host has "
    "launched the optimizer's step",
    until="Megatron-core returns the norm as a tensor without TransformerEngine too",
    without="slower",
    symptom=Symptom("total_norm = total_norm.pow(1.0 / norm_type)"),
)
def grad_norm_as_tensor(call: Call) -> Any:
    """Return the L2 norm as a tensor [], which clipping reads on the device, as with TransformerEngine."""
    import torch

    given = call_arguments.known(("grads_for_norm", "norm_type", "grad_stats_parallel_group"), call)
    if given is None or given.get("norm_type", 2) != 2 or not _are_plain(given.get("grads_for_norm")):
        return call.proceed()
    # Another patch of this function may be inside.
    if not _takes_tensors(inspect.unwrap(call.wrapped).__globals__["clip_grad_by_total_norm_fp32"]):
        return call.proceed()
    total = norm_of(given["grads_for_norm"]).square()
    torch.distributed.all_reduce(total, group=given.get("grad_stats_parallel_group"))
    return total.sqrt()


def _takes_tensors(clip: Any) -> bool:
    """Return whether ``clip_gradients_in_one_operation`` is among the wrappers of ``clip``.

    Without it, clipping expects a number.
    """
    ours = clip_gradients_in_one_operation.function
    while clip is not None:
        if any(cell.cell_contents is ours for cell in getattr(clip, "__closure__", None) or ()):
            return True
        clip = getattr(clip, "__wrapped__", None)
    return False


def _are_plain(grads: Any) -> bool:
    """Return whether this is a non-empty list of plain fp32 tensors, no subclasses, on one device."""
    import torch

    if not isinstance(grads, list) or not grads:
        return False
    device = grads[0].device
    return all(type(one) is torch.Tensor and one.dtype == torch.float32 and one.device == device for one in grads)


@replace(
    "megatron.core.utils:local_multi_tensor_scale",
    bodies="9947e5dd5cd69cee",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="without apex, gradients are scaled and parameters are copied with two operations per parameter",
    until="Megatron-core uses torch's foreach operations",
    without="slower",
    symptom=Symptom("dst.copy_(src * scale)"),
)
def multi_tensor_scale_in_one_operation(
    chunk_size: int, noop_flag: Any, tensor_lists: list[list[Any]], scale: Any
) -> None:
    """Copy each tensor of the first list, scaled, into the tensor at the same position of the second list."""
    import torch

    source, target = tensor_lists
    if all(one is other for one, other in zip(source, target, strict=True)):
        torch._foreach_mul_(target, scale)
    else:
        scaled = source if scale == 1.0 else torch._foreach_mul(source, scale)
        torch._foreach_copy_(target, scaled)


@wrap(
    "megatron.core.optimizer.optimizer:_multi_tensor_copy_this_to_that",
    bodies="af852c6bdac7f797",
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="in bf16, each parameter is copied in its own operation, and the device waits for the host",
    until="Megatron-core copies parameters in bf16 with torch's foreach operations",
    without="slower",
    symptom=Symptom("that_.copy_(this_)"),
)
def multi_tensor_copy_in_one_operation(call: Call) -> Any:
    """Copy each tensor of the first list into the tensor at the same position of the second list."""
    import torch

    given = call_arguments.known(("this", "that", "overflow_buf"), call)
    if given is None or given.get("overflow_buf") is not None or not given["this"]:
        return call.proceed()
    if len(given["this"]) != len(given["that"]):
        return call.proceed()
    with torch.no_grad():
        torch._foreach_copy_(given["that"], given["this"])
    return None


@wrap(
    "megatron.core.optimizer.clip_grads:clip_grad_by_total_norm_fp32",
    bodies=("ddb2f9c926fab5ed", "bdd2d6e22ad6e79e", "437768caeaac9416"),
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="the host has just read the norm, so the device waits while Python inspects each gradient",
    until="Megatron-core clips gradients without a loop over all parameters",
    without="slower",
    symptom=Symptom("assert param.grad.type() == 'torch.cuda.FloatTensor'"),
)
def clip_gradients_in_one_operation(call: Call) -> Any:
    """Scale fp32 gradients in place if their norm exceeds the maximum. Megatron's code handles all other gradients."""
    import torch

    given = call_arguments.known(("parameters", "max_norm", "total_norm", "use_decoupled_grad"), call)
    parameters = None if given is None or given.get("use_decoupled_grad") else given["parameters"]
    grads = [grad for each in parameters if (grad := each.grad) is not None] if isinstance(parameters, list) else []
    if given is None or not _are_plain(grads):
        if isinstance(call["total_norm"], torch.Tensor):
            call["total_norm"] = call["total_norm"].item()
        return call.proceed()
    factor = given["max_norm"] / (given["total_norm"] + 1.0e-6)
    if isinstance(factor, torch.Tensor):
        factor = torch.where(factor < 1.0, factor, 1.0).reshape(())  # a NaN clips nothing, as below
    elif not factor < 1.0:
        return None
    with torch.no_grad():
        torch._foreach_mul_(grads, factor)
    return None


@wrap(
    "megatron.core.optimizer:get_megatron_optimizer",
    requires=REQUIRES,
    host=HOST,
    devices="cuda",
    why="without apex and TransformerEngine the optimizer is torch's unfused AdamW",
    until="Megatron-core uses torch's fused AdamW",
    without="slower",
    symptom=Symptom(
        "from torch.optim import AdamW as Adam",
        "from torch.optim import AdamW as Adam, SGD",
        at="megatron.core.optimizer",
    ),
)
def fused_adam(call: Call) -> Any:
    """Make torch's Adam and AdamW fused, unless fused, foreach or capturable is set."""
    import torch

    made = call.proceed()
    for each in getattr(made, "chained_optimizers", [made]):
        inner: Any = getattr(each, "optimizer", None)
        if type(inner) in (torch.optim.AdamW, torch.optim.Adam):
            for group in (inner.defaults, *inner.param_groups):
                if group.get("fused") is None and group.get("foreach") is None and not group.get("capturable"):
                    group["fused"] = True
    return made


@wrap(
    "megatron.core.fp8_utils:quantize_param_shard",
    requires="megatron-core>=0.12,<0.13",
    host=HOST,
    why="without TransformerEngine, the distributed optimizer's step raises an error, even without fp8 parameters",
    until="support for Megatron-core 0.12 ends",
    without="crash",
    symptom=Symptom(
        "def _quantize_param_shard_impl(*args, **kwargs):\n"
        "    raise RuntimeError('Invalid Transformer Engine version for FP8 distributed optimizer')",
        at="megatron.core.fp8_utils",
    ),
)
def quantize_without_transformer_engine(call: Call) -> Any:
    """Quantize the fp8 parameters, if any."""
    parameters = call["model_params"]
    return call.proceed() if len(parameters) else None
