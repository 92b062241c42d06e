"""AdamW with torch's fused implementation."""

from __future__ import annotations

from torch.optim.adamw import adamw

from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.operators.adamw._gradients import in_dtype_of_parameters, write_copies


def supports(call: AdamwCall) -> str:
    """Return "" or why torch's implementation does not compute this call in fp32."""
    for param, grad, mean, square in zip(call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, strict=True):
        dtypes = {str(each.dtype).removeprefix("torch.") for each in (param, mean, square)}
        if len(dtypes) > 1:
            return f"parameter and moments are {', '.join(sorted(dtypes))}"
        if grad.element_size() > param.element_size() or (grad.dtype != param.dtype and grad.element_size() > 2):
            return f"a parameter is {dtypes.pop()}, its gradient {str(grad.dtype).removeprefix('torch.')}"
    if any(step.dim() for step in call.steps):
        return "the step counters are not 0-d"
    return ""


def run(call: AdamwCall) -> None:
    """Do one AdamW step."""
    call = in_dtype_of_parameters(call)
    device = call.params[0].device
    # The fused implementation needs its counters on the device; the caller's may be on the host.
    steps = [step if step.device == device else step.to(device) for step in call.steps]
    adamw(
        list(call.params),
        list(call.grads),
        list(call.exp_avgs),
        list(call.exp_avg_sqs),
        [],
        steps,
        fused=True,
        # Not left to torch, whose copy to the host does not wait for the device.
        found_inf=None if call.found_inf is None else call.found_inf.to(device),
        amsgrad=False,
        beta1=call.beta1,
        beta2=call.beta2,
        lr=call.lr,
        weight_decay=call.weight_decay,
        eps=call.eps,
        maximize=call.maximize,
    )
    for mine, theirs in zip(steps, call.steps, strict=True):
        if mine is not theirs:
            theirs.copy_(mine)
    write_copies(call)
