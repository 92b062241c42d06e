"""Reference of adamw, in plain torch, one parameter at a time."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.adamw import AdamwCall


def supports(call: AdamwCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: AdamwCall) -> None:
    """Do one AdamW step."""
    if call.found_inf is not None and call.found_inf:
        return
    copies = call.copies or (None,) * len(call.params)
    for param, given, mean, square, step, copy in zip(
        call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, call.steps, copies, strict=True
    ):
        exact = torch.promote_types(param.dtype, torch.float32)
        step += 1
        count = float(step)
        grad = -given.to(exact) if call.maximize else given.to(exact)
        if call.factor is not None:
            grad = grad * call.factor.to(grad.device)
        first = call.beta1 * mean.to(exact) + (1 - call.beta1) * grad
        second = call.beta2 * square.to(exact) + (1 - call.beta2) * grad.square()
        root = (second / (1 - call.beta2**count)).sqrt() + call.eps
        kept = param.to(exact) * (1 - call.lr * call.weight_decay)
        param.copy_(kept - call.lr * first / (1 - call.beta1**count) / root)
        mean.copy_(first)
        square.copy_(second)
        if copy is not None:
            copy.copy_(param)
