"""Aten operators, and dtypes of their arguments, that devices support and CPUs do not, on CPU tensors.

Loaded in ranks only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.emulation import saturation
from ascend_adapt.emulation.operators import sync_batch_norm

Kernel = Callable[..., Any]


def matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of ``self @ other``, for any shapes of matmul; ``mask`` selects which are computed."""
    if self.dim() >= 2 and other.dim() == 2 and self.numel() and grad.numel():
        # As matmul does: one matrix product, so that sums have the same order.
        rows = grad.reshape(-1, grad.shape[-1])
        of_self = (rows @ other.t()).view(self.shape) if mask[0] else None
        return of_self, self.reshape(-1, self.shape[-1]).t() @ rows if mask[1] else None
    left = self if self.dim() > 1 else self.unsqueeze(0)
    right = other if other.dim() > 1 else other.unsqueeze(1)
    if other.dim() == 1:
        grad = grad.unsqueeze(-1)
    if self.dim() == 1:
        grad = grad.unsqueeze(-2)
    of_left = (grad @ right.mT).sum_to_size(left.shape).view(self.shape) if mask[0] else None
    return of_left, (left.mT @ grad).sum_to_size(right.shape).view(other.shape) if mask[1] else None


def masked_scale(self: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``self`` scaled where ``mask`` is True, and zero elsewhere."""
    return self * mask.to(self.dtype) * scale


def depthwise_convolution(
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    """Return the depthwise convolution: each channel by itself."""
    return torch.conv2d(self, weight, bias, stride, padding, dilation, groups=self.shape[1])


def in_dtype(operator: Kernel) -> Kernel:
    """Return a matrix product whose result and accumulation have another dtype than its arguments."""

    def product(*args: Any, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        *matrices, dtype = args
        wide = [one.to(torch.promote_types(dtype, torch.float32)) for one in matrices]
        scaled = {} if len(wide) == 2 else {"beta": beta, "alpha": alpha}
        return operator(*wide, **scaled).to(dtype)

    return product


_NARROW = {"Half": torch.float16, "BFloat16": torch.bfloat16}
_REFUSED = re.compile(
    r"not implemented for '(Half|BFloat16)'|Unsupported datatype for \w+:\s?(?:c10::)?(Half|BFloat16)"
)


def at_any_precision(operator: Kernel, schema: torch.FunctionSchema) -> Kernel:
    """Return an operator that computes in float32 where the CPU has no kernel for float16 or bfloat16."""
    written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    names = {one.name for one, is_written in zip(schema.arguments, written, strict=True) if is_written}

    def call(*args: Any, **named: Any) -> Any:
        try:
            return operator(*args, **named)
        except (NotImplementedError, RuntimeError) as error:
            refused = _REFUSED.search(str(error))
            if refused is None:
                raise
        narrow = _NARROW[refused[1] or refused[2]]
        widened: list[tuple[torch.Tensor, torch.Tensor]] = []

        def widen(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [widen(one) for one in value]
            if not isinstance(value, torch.Tensor) or value.dtype != narrow:
                return value
            widened.append((value, value.float()))
            return widened[-1][1]

        def narrowed(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(narrowed(one) for one in value)
            if not isinstance(value, torch.Tensor):
                return value
            known = [before for before, wide in widened if wide is value]
            return known[0] if known else value.to(narrow) if value.dtype == torch.float32 else value

        wide_args = [widen(one) for one in args]
        wide_named = {name: widen(one) for name, one in named.items()}
        result = operator(*wide_args, **wide_named)
        targets = [one for one, is_written in zip(wide_args, written, strict=False) if is_written]
        for one in targets + [one for name, one in wide_named.items() if name in names]:
            for wide in one if isinstance(one, list) else [one]:
                target = narrowed(wide)
                if target is not wide:
                    (target if target.shape == wide.shape else target.resize_(wide.shape)).copy_(wide)
        return narrowed(result)

    return call


def with_int32_target(operator: Kernel) -> Kernel:
    """Return a loss whose target may be int32, which a device takes and a CPU does not.

    Source: op-plugin@517f2e7 test/test_base_ops/test_nllloss.py and test_nllloss2d.py.
    """

    def loss(*args: Any, **named: Any) -> Any:
        return operator(*map(_int64, args), **named)

    return loss


def _int64(value: Any) -> Any:
    return value.long() if isinstance(value, torch.Tensor) and value.dtype == torch.int32 else value


def histc(
    self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the histogram of a tensor of any real dtype, in that dtype; the CPU kernel takes floating dtypes only."""
    wide = self if self.is_floating_point() else self.double()
    counts = torch.histc(wide, bins, min, max).to(self.dtype)
    return counts if out is None else out.resize_(counts.shape).copy_(counts)


def non_finite_check_and_unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Unscale gradients in place, or report in ``found_inf`` that they overflowed; saturating devices have only a flag.

    Source: op-plugin@517f2e7 opapi/AmpForeachNonFiniteCheckAndUnscaleKernelNpuOpApi.cpp; it clears the flag.
    """
    if not saturation.is_on():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
    elif grads and saturation.take_flag():
        found_inf.fill_(1)
    else:
        for grad in grads:
            grad.mul_(inv_scale)


KERNELS: dict[str, Kernel] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": non_finite_check_and_unscale,
    "aten::matmul_backward": matmul_backward,
    **sync_batch_norm.ATEN,
    "aten::_masked_scale": masked_scale,
    "aten::_conv_depthwise2d": depthwise_convolution,
    "aten::histc": histc,
    "aten::histc.out": histc,
    **{
        f"aten::{name}": with_int32_target(getattr(torch.ops.aten, name).default)
        for name in ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "one_hot")
    },
    "aten::mm.dtype": in_dtype(torch.mm),
    "aten::bmm.dtype": in_dtype(torch.bmm),
    "aten::addmm.dtype": in_dtype(torch.addmm),
    "aten::baddbmm.dtype": in_dtype(torch.baddbmm),
}
