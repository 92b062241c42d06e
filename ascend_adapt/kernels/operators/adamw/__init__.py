"""AdamW step over many parameters, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import (
    check_float,
    check_float_or_none,
    check_number,
    check_together,
    describe,
    is_tensor,
)
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class AdamwCall(KernelCall):
    """The checked arguments of adamw, without the parameters that have no gradient."""

    overwritten = frozenset(("grads",))

    params: tuple[Any, ...]
    grads: tuple[Any, ...]
    exp_avgs: tuple[Any, ...]
    exp_avg_sqs: tuple[Any, ...]
    steps: tuple[Any, ...]
    lr: Any
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    maximize: bool = False
    factor: Any = None
    copies: tuple[Any, ...] = ()
    found_inf: Any = None

    def tensor(self) -> Any:
        """Return the first parameter."""
        return self.params[0]

    def signature(self) -> tuple[Any, ...]:
        """Return the device and the kinds of parameters, and whether all tensors are contiguous.

        Sizes are left out, because there may be thousands of parameters.

        All are on one device, which differs from the model's device if the optimizer is offloaded.
        """
        columns = (self.params, self.grads, self.exp_avgs, self.exp_avg_sqs, self.copies or self.params)
        kinds = {(*(each.dtype for each in row), row[0].dim()) for row in zip(*columns, strict=True)}
        contiguous = all(each.is_contiguous() for column in columns for each in column)
        steps = frozenset(step.dim() for step in self.steps)
        absent = (self.factor is None, self.found_inf is None)
        first = self.params[0]
        return (type(first), first.device, frozenset(kinds), contiguous, steps, absent, isinstance(self.lr, float))

    def small(self) -> AdamwCall:
        """Return a small call with a few elements of the first parameter."""
        alike = small_tensors.maker()
        param, grad, mean, square = (
            alike(each[0].detach(), small_tensors.ROWS)
            for each in (self.params, self.grads, self.exp_avgs, self.exp_avg_sqs)
        )
        return replace(
            self,
            params=(param,),
            grads=(grad,),
            exp_avgs=(mean,),
            exp_avg_sqs=(square.square(),),
            steps=(self.steps[0].clone(),),
            # Not the values of the call: a skipped step, or NaN, would compare nothing.
            factor=None if self.factor is None else self.factor.new_full((), 0.5),
            copies=() if not self.copies else (alike(self.copies[0].detach(), small_tensors.ROWS),),
            found_inf=None if self.found_inf is None else self.found_inf.new_zeros(()),
        )


def adamw(
    params: Sequence[Any],
    grads: Sequence[Any],
    exp_avgs: Sequence[Any],
    exp_avg_sqs: Sequence[Any],
    steps: Sequence[Any],
    *,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    maximize: bool = False,
    factor: Any = None,
    copies: Sequence[Any] = (),
    found_inf: Any = None,
) -> None:
    """Update parameters, moments and step counters by one step of AdamW, in place.

    A parameter whose gradient is None is unchanged, and so is its step counter, which determines its bias correction.

    Args:
        params: float tensors on one device.
        grads: the gradients, each with its parameter's shape, or None. They may be overwritten.
        exp_avgs: first moments, with the shapes of the parameters.
        exp_avg_sqs: second moments, with the shapes of the parameters.
        steps: for each parameter, a one-element fp32 tensor with the number of earlier steps, as in torch's optimizers.
        lr: learning rate, a number or a 0-d fp32 tensor. The tensor's value may change between replays of a CUDA graph.
        betas: decay rates of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled weight decay: each step subtracts lr * weight_decay * weight.
        maximize: whether to ascend the gradient.
        factor: 0-d fp32 tensor by which each gradient is multiplied first, such as for clipping; None is 1.
        copies: 16-bit copies of the parameters, in the same shapes, to which the new values are written; may be empty.
        found_inf: 0-d fp32 tensor, as in torch's fused optimizers. 1 skips the step: parameters, moments and step
            counters are unchanged. 0 and None do not skip it.

    Raises:
        KernelArgumentError: lists have different lengths, shapes do not match, two parameters share a counter, or a
            beta is out of range.
        BackendUnavailable: the requested backend does not support the call.
    """
    lists = {"grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "steps": steps}
    for name, others in lists.items():
        if len(others) != len(params):
            raise KernelArgumentError(
                f"{name}: has {len(others)} tensors, expected {len(params)} as in params — pass one for each"
            )
    for name, number in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        check_number(name, number)
    if len(betas) != 2 or not all(0.0 <= rate < 1.0 for rate in betas):
        raise KernelArgumentError(f"betas={betas!r}: expected two numbers in [0, 1) — correct them")
    if len({id(step) for step in steps}) != len(steps):
        raise KernelArgumentError(
            "steps: two parameters share a counter, expected a counter for each — pass separate tensors"
        )
    if copies and len(copies) != len(params):
        raise KernelArgumentError(
            f"copies: has {len(copies)} tensors, expected {len(params)} as in params — pass one for each"
        )
    present = [index for index, grad in enumerate(grads) if grad is not None]
    if not present:
        return
    first = params[present[0]]
    for index in present:
        row = (params[index], grads[index], exp_avgs[index], exp_avg_sqs[index], *copies[index : index + 1])
        if not _are_alike(row, first) or not _counts(steps[index]):
            _check_row(index, row, steps[index], first)

    def of(tensors: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(tensors[index] for index in present)

    import torch

    with torch.no_grad():
        KERNEL(
            AdamwCall(
                of(params),
                of(grads),
                of(exp_avgs),
                of(exp_avg_sqs),
                of(steps),
                lr,
                *betas,
                eps,
                weight_decay,
                maximize,
                factor,
                of(copies) if copies else (),
                found_inf,
            )
        )


def _are_alike(row: tuple[Any, ...], first: Any) -> bool:
    """Return whether a parameter, its gradient and moments are float tensors of one shape on the device of ``first``.

    A step has thousands of parameters. ``_check_row`` takes longer, and reports what is wrong.
    """
    if not all(map(is_tensor, row)):
        return False
    shape, device = row[0].shape, first.device
    return all(each.shape == shape and each.device == device and each.dtype.is_floating_point for each in row)


def _counts(step: Any) -> bool:
    return is_tensor(step) and step.numel() == 1 and step.dtype.itemsize >= 4 and step.dtype.is_floating_point


def _check_row(index: int, row: tuple[Any, ...], step: Any, first: Any) -> None:
    param = row[0]
    check_float(f"params[{index}]", param, shape="of any shape")
    for name, other in zip(("grads", "exp_avgs", "exp_avg_sqs", "copies"), row[1:], strict=False):
        check_float_or_none(f"{name}[{index}]", other, param.shape, f"params[{index}]")
        check_together(f"params[{index}]", param, **{f"{name}[{index}]": other})
    if not _counts(step):
        raise KernelArgumentError(
            f"steps[{index}]: is {describe(step)}, expected a one-element fp32 tensor — convert it"
        )
    check_together("params[0]", first, **{f"params[{index}]": param})


KERNEL = Kernel("adamw")
