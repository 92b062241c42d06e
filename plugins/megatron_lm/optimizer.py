"""Fixes and faster operations for Megatron-core's optimizer without apex and TransformerEngine."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, replace, wrap

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
    import torch

    tensors = [tensor for tensors in tensor_lists for tensor in tensors]
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(tensors)])
    return torch.linalg.vector_norm(norms).reshape(1), None


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
