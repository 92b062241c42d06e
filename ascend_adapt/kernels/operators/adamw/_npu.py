"""AdamW with torch_npu's npu_apply_adam_w, one parameter at a time."""

from __future__ import annotations

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.operators.adamw._gradients import write_copies
from ascend_adapt.npu_limits import adam as limits

APPLY_ADAM_W = npu.Operator(
    "npu_apply_adam_w.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1, "
    "Scalar beta2, Scalar epsilon, Tensor grad, Tensor? max_grad_norm, bool? amsgrad, bool? maximize, *, "
    "Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
    (
        *("beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon", "grad", "max_grad_norm"),
        *("amsgrad", "maximize", "out"),
    ),
)


def supports(call: AdamwCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    for param, grad, mean, square in zip(call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, strict=True):
        if reason := npu.dtype_reason(param, mean, square) or npu.dtype_reason(grad):
            return reason
        if str(param.dtype) != "torch.float32":
            return "its moments would be rounded to the parameter's dtype"
        if param.dim() not in limits.DIMENSIONS:
            return limits.DIMENSION_COUNT.unmet(False, f"a parameter has {param.dim()}")
    return APPLY_ADAM_W.difference()


def run(call: AdamwCall) -> None:
    """Do one AdamW step. The host waits for ``found_inf``, because the operator cannot skip a step."""
    if call.found_inf is not None and call.found_inf:
        return
    lists = (call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, call.steps)
    for param, grad, mean, square, step in zip(*lists, strict=True):
        # One at a time: 16-bit gradients of all parameters, converted at once, would take 4 bytes each.
        wide = grad.to(param.dtype)
        if call.factor is not None:
            wide.mul_(call.factor.to(wide.device))
        before = float(step)
        step += 1
        # The operator multiplies the powers by the betas itself, so it gets the powers of the previous step.
        APPLY_ADAM_W(
            call.beta1**before,
            call.beta2**before,
            float(call.lr),
            call.weight_decay,
            call.beta1,
            call.beta2,
            call.eps,
            wide,
            None,
            False,
            call.maximize,
            # torch_npu's yaml has var, m and v, but the registered schema has one list.
            out=[param, mean, square],
        )
    write_copies(call)
