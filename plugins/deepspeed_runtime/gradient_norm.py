"""Gradient norm of ZeRO-1 and ZeRO-2, for clipping."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.get_grad_norm_direct",
    requires=("deepspeed>=0.6.0", "torch>=2.4"),
    devices="cuda",
    why="it copies each gradient to double before it computes the norm: it is launch-bound on a fast device, and moves "
    "nine times the bytes of 16-bit gradients",
    until="DeepSpeed computes the norms of all gradients in a few operations",
    without="slower",
    symptom=Symptom(
        "param_norm = g.data.double().norm(2)",
        "torch.norm(g.data.double().detach(), norm_type)",
        "torch.linalg.vector_norm(g.data.double().detach(), ord=norm_type)",
        "torch.linalg.vector_norm(g.data.to(get_norm_dtype()).detach(), ord=norm_type)",
    ),
)
def batched_gradient_norm(call: Call) -> Any:
    """Return DeepSpeed's gradient norm, from norms of the gradients that one operation computes in double.

    DeepSpeed still decides which parameters this rank counts, and sums over ranks. Parameters that it treats alike are
    passed as one parameter, whose gradient is the vector of their norms.
    """
    import torch
    from deepspeed.runtime.utils import is_model_parallel_parameter

    gradients = [each for each in call["gradients"] if not getattr(each, "_zero_padding", False)]
    pairs = [(each, param) for each, param in zip(gradients, call["params"], strict=False) if each.numel()]
    if call["norm_type"] != 2 or not pairs or any(each.is_sparse for each, _ in pairs):
        return call.proceed()
    with torch.no_grad():
        norms = torch._foreach_norm([each for each, _ in pairs], 2, dtype=torch.float64)
    alike: dict[tuple[bool, bool], tuple[Any, list[Any]]] = {}
    for norm, (_, param) in zip(norms, pairs, strict=True):
        kind = (getattr(param, "ds_pipe_replicated", False), is_model_parallel_parameter(param))
        alike.setdefault(kind, (param, []))[1].append(norm)
    call["gradients"] = [torch.stack(group) for _, group in alike.values()]
    call["params"] = [param for param, _ in alike.values()]
    return call.proceed()
