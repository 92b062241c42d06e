"""CPU implementations of aten operators and dtypes that devices support and the CPU does not.

Only ranks import this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.emulation import saturation
from ascend_adapt.emulation.operators import sync_batch_norm
from ascend_adapt.emulation.operators.precision import at_least_float32

Kernel = Callable[..., Any]

_WIDE = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)


def matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of ``self @ other`` for any shapes of matmul; ``mask`` selects the gradients to compute."""
    dtype = self.dtype
    if self.dim() >= 2 and other.dim() == 2 and self.numel() and grad.numel():
        # Like matmul, use one matrix product, so that sums have the same order.
        rows = grad.reshape(-1, grad.shape[-1])
        of_self = (rows @ other.t()).view(self.shape) if mask[0] else None
        return of_self, self.reshape(-1, self.shape[-1]).t() @ rows if mask[1] else None
    # A device sums over the batch inside one product, so 16-bit results are rounded once.
    grad, self, other = (at_least_float32(one) for one in (grad, self, other))
    left = self if self.dim() > 1 else self.unsqueeze(0)
    right = other if other.dim() > 1 else other.unsqueeze(1)
    if other.dim() == 1:
        grad = grad.unsqueeze(-1)
    if self.dim() == 1:
        grad = grad.unsqueeze(-2)
    of_self = (grad @ right.mT).sum_to_size(left.shape).view(self.shape).to(dtype) if mask[0] else None
    of_other = (left.mT @ grad).sum_to_size(right.shape).view(other.shape).to(dtype) if mask[1] else None
    return of_self, of_other


def masked_scale(self: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``self * scale`` where ``mask`` is True, and zero elsewhere."""
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
    """Return the depthwise convolution, which convolves each channel separately."""
    return torch.conv2d(self, weight, bias, stride, padding, dilation, groups=self.shape[1])


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output and the statistics [C], which are float32 in training and unused in evaluation.

    Source: op-plugin@5045ad2 config/op_plugin_functions.yaml native_batch_norm.
    """
    running = [None if one is None else at_least_float32(one) for one in (running_mean, running_var)]
    given = [None if one is None else at_least_float32(one) for one in (input, weight, bias)]
    result, *saved = torch.native_batch_norm(*given, *running, training, momentum, eps)
    for one, updated in zip((running_mean, running_var), running, strict=True):
        if one is not None and updated is not one:
            one.copy_(updated)
    mean, deviation = saved if training else (input.new_zeros(input.shape[1]) for _ in saved)
    return result.to(input.dtype), mean, deviation


def batch_norm_backward(
    grad_out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, *statistics_and_rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of input, weight and bias, summed in float32."""
    statistics = [None if one is None else at_least_float32(one) for one in statistics_and_rest[:4]]
    given = [None if one is None else at_least_float32(one) for one in (grad_out, input, weight)]
    found = torch.ops.aten.native_batch_norm_backward(*given, *statistics, *statistics_and_rest[4:])
    dtypes = (input.dtype, *[input.dtype if weight is None else weight.dtype] * 2)
    return tuple(None if one is None else one.to(dtype) for one, dtype in zip(found, dtypes, strict=True))


def layer_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output and the statistics, which are float32.

    Source: op-plugin@5045ad2 ops/opapi/LayerNormKernelNpuOpApi.cpp.
    """
    wide, *factors = (None if one is None else at_least_float32(one) for one in (input, weight, bias))
    result, mean, deviation = torch.native_layer_norm(wide, normalized_shape, *factors, eps)
    return result.to(input.dtype), mean, deviation


def layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of input, weight and bias, summed in float32.

    The CPU's kernel rounds each 16-bit term: over 1600 rows, the gradient of a weight is off by 1 %.
    """
    grad, wide, *factors = (None if one is None else at_least_float32(one) for one in (grad_out, input, weight, bias))
    statistics = at_least_float32(mean), at_least_float32(rstd)
    backward = torch.ops.aten.native_layer_norm_backward
    found = backward(grad, wide, normalized_shape, *statistics, *factors, output_mask)
    given = input, weight, bias
    return tuple(
        None if one is None else one.to((input if like is None else like).dtype)
        for one, like in zip(found, given, strict=True)
    )


def in_dtype(operator: Kernel) -> Kernel:
    """Return a matrix product whose result and accumulation have a different dtype from its arguments."""

    def product(*args: Any, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        *matrices, dtype = args
        wide = [one.to(torch.promote_types(dtype, torch.float32)) for one in matrices]
        scaled = {} if len(wide) == 2 else {"beta": beta, "alpha": alpha}
        return operator(*wide, **scaled).to(dtype)

    return product


def foreach_sub(subtract: Kernel) -> Kernel:
    """Return a kernel of ``self - alpha * other`` over lists; it also rounds the product to float16.

    Source: op-plugin@5045ad2 test/test_base_ops/test_foreach_sub_list.py.
    """

    def run(self: list[torch.Tensor], other: list[torch.Tensor], *, alpha: float = 1) -> Any:
        if other and other[0].dtype == torch.float16:
            return subtract(self, torch._foreach_mul(other, alpha))
        return subtract(self, other, alpha=alpha)

    return run


def foreach_with_scalars(operator: Kernel, term: Kernel, add: Kernel) -> Kernel:
    """Return a kernel of ``self + scalar * term(tensor1, tensor2)`` over lists; in float16 it rounds every step.

    Source: op-plugin@5045ad2 test/test_base_ops/test_foreach_addcdiv_scalar_list.py and the tests beside it.
    """

    def run(self: list[torch.Tensor], tensor1: list[torch.Tensor], tensor2: list[torch.Tensor], scalars: Any) -> Any:
        if self and self[0].dtype == torch.float16 and not self[0].is_meta:
            scalars = scalars.tolist() if isinstance(scalars, torch.Tensor) else scalars
            return add(self, torch._foreach_mul(term(tensor1, tensor2), scalars))
        return operator(self, tensor1, tensor2, scalars)

    return run


def with_int32_target(operator: Kernel) -> Kernel:
    """Return a loss whose target may be int32, which a device accepts and the CPU does not.

    Source: op-plugin@517f2e7 test/test_base_ops/test_nllloss.py, test_nllloss2d.py and test_multilabel_margin_loss.py.
    """

    def loss(*args: Any, **named: Any) -> Any:
        return operator(*map(_int64, args), **named)

    return loss


def put_(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write elements in place; an NPU also accepts an int32 index.

    Source: op-plugin@5045ad2 test/test_base_ops/test_put.py.
    """
    return self.put_(_int64(index), source, accumulate)


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return a one-hot tensor in the dtype of the classes, which may be int32.

    Source: op-plugin@5045ad2 test/test_base_ops/test_one_hot.py.
    """
    return torch.nn.functional.one_hot(_int64(self), num_classes).to(self.dtype)


def one_hot_of_subclass(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return a one-hot tensor of a DTensor, whose own composition has an operator without a sharding strategy.

    Source: op-plugin@5045ad2 ops/opapi/OneHotKernelNpuOpApi.cpp.
    """
    from torch.distributed.tensor.experimental import implicit_replication

    with implicit_replication():
        return (self.unsqueeze(-1) == torch.arange(num_classes, device=self.device)).long()


def _int64(value: Any) -> Any:
    return value.long() if isinstance(value, torch.Tensor) and value.dtype == torch.int32 else value


def adaptive_avg_pool2d(self: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    """Return averages over the last two dimensions; for output size 1, of an input with any number of dimensions.

    Source: op-plugin@5045ad2 ops/opapi/AdaptiveAvgPool2dKernelNpuOpApi.cpp.

    Raises:
        RuntimeError: a size is negative, or there are not two, as op-plugin reports it.
    """
    if len(output_size) != 2:
        raise RuntimeError("adaptive_avg_pool2d: output size must be 2.")
    if min(output_size) < 0:
        sizes = ", ".join(map(str, output_size))
        raise RuntimeError(
            f"adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 but received {{{sizes}}}"
        )
    if list(output_size) == [1, 1]:
        return self.mean((-1, -2), keepdim=True)
    return torch.ops.aten._adaptive_avg_pool2d(self, output_size)


def cdist_backward(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of ``x1``; among 16-bit differences, the rounded distance selects the largest.

    Source: op-plugin@5045ad2 test/test_base_ops/test_cdist_backward.py.
    """
    if p != math.inf or x1.dtype not in (torch.float16, torch.bfloat16):
        return torch.ops.aten._cdist_backward(grad, x1, x2, p, cdist)
    difference = x1.float().unsqueeze(-2) - x2.float().unsqueeze(-3)
    is_largest = difference.abs() >= cdist.float().unsqueeze(-1)
    return (grad.float().unsqueeze(-1) * difference.sign() * is_largest).sum(-2).to(x1.dtype)


def histc(
    self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the histogram of a tensor of any real dtype, in that dtype; the CPU only supports floating dtypes."""
    wide = self if self.is_floating_point() else self.double()
    counts = torch.histc(wide, bins, min, max).to(self.dtype)
    return counts if out is None else out.resize_(counts.shape).copy_(counts)


def softmax(operator: Kernel) -> Kernel:
    """Return a softmax or its logarithm that a device also computes from float16 to float32."""

    def run(self: torch.Tensor, dim: int, half_to_float: bool) -> Any:
        return operator(self.float() if half_to_float else self, dim, False)

    return run


def softmax_backward(operator: Kernel) -> Kernel:
    """Return the gradient of a softmax, or of its logarithm, whose input may be narrower than its output."""

    def run(grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        return operator(grad_output, output, dim, output.dtype).to(input_dtype)

    return run


def divide_(self: torch.Tensor, other: Any) -> torch.Tensor:
    """Divide in place; a device truncates the quotients of integers, which the CPU's kernel refuses to write.

    torch_npu's process group does so for ReduceOp.AVG. Source: Ascend/pytorch test/distributed/test_allreduce.py.
    """
    if self.is_floating_point() or self.is_complex():
        return self.div_(other)
    return self.copy_(torch.div(self, other))


def normal(
    self: torch.Tensor, mean: float = 0, std: float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill a tensor with normal numbers; a device casts them to an integer dtype, which the CPU's kernel does not take.

    Source: op-plugin@5045ad2 test/test_custom_ops/test_npu_gather_sparse_index.py.
    """
    if self.is_floating_point() or self.is_complex():
        return self.normal_(mean, std, generator=generator)
    return self.copy_(torch.empty_like(self, dtype=torch.float32).normal_(mean, std, generator=generator))


def normal_of_each(
    mean: torch.Tensor | float,
    std: torch.Tensor | float,
    *,
    generator: torch.Generator | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Fill ``out`` with normal numbers of the given means and deviations; the CPU's kernel does not resize it."""
    found = torch.normal(mean, std, generator=generator)
    return out.resize_(found.shape).copy_(found)


def norm(
    self: torch.Tensor,
    ord: float = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm of a vector, its terms summed in float64.

    A device sums in a tree. The CPU's kernel adds one term after the other: for 65536 numbers its error is 7e-6 of the
    result, which is more than a test of clipped gradients allows.

    Raises:
        RuntimeError: a dimension is out of range, as torch_npu's own check reports it; the CPU's kernel has IndexError.
    """
    given = self if dtype is None else self.to(dtype)
    try:
        found = torch.linalg.vector_norm(given, ord, dim, keepdim, dtype=_WIDE.get(given.dtype, given.dtype))
    except IndexError as error:
        raise RuntimeError(str(error)) from None
    found = found.to(given.dtype) if given.dtype in _WIDE else found
    return found if out is None else out.resize_(found.shape).copy_(found)


def norms(self: list[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Return the norm of each tensor."""
    return [norm(one, ord, dtype=dtype) for one in self]


def non_finite_check_and_unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Unscale gradients in place, or set ``found_inf`` if they overflowed; saturating devices use an overflow flag.

    Source: op-plugin@517f2e7 opapi/AmpForeachNonFiniteCheckAndUnscaleKernelNpuOpApi.cpp; it clears the flag.
    """
    if not saturation.is_on():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
    elif grads and saturation.take_flag():
        found_inf.fill_(1)
    else:
        for grad in grads:
            grad.mul_(inv_scale)


OF_SUBCLASSES: dict[str, Kernel] = {"aten::one_hot": one_hot_of_subclass}
"""Compositions for tensors without memory."""

COMPOSITIONS: dict[str, Kernel] = {"aten::adaptive_avg_pool2d": adaptive_avg_pool2d}
"""Compositions of other operators, whose gradients they have."""

KERNELS: dict[str, Kernel] = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": non_finite_check_and_unscale,
    "aten::matmul_backward": matmul_backward,
    "aten::native_batch_norm": batch_norm,
    "aten::native_batch_norm_backward": batch_norm_backward,
    "aten::native_layer_norm": layer_norm,
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::_cdist_backward": cdist_backward,
    **sync_batch_norm.ATEN,
    "aten::_foreach_sub.List": foreach_sub(torch.ops.aten._foreach_sub.List),
    "aten::_foreach_sub_.List": foreach_sub(torch.ops.aten._foreach_sub_.List),
    **{
        f"aten::_foreach_{name}{place}.{kind}": foreach_with_scalars(
            getattr(getattr(torch.ops.aten, f"_foreach_{name}{place}"), kind),
            term,
            getattr(torch.ops.aten, f"_foreach_add{place}").List,
        )
        for name, term in (("addcmul", torch._foreach_mul), ("addcdiv", torch._foreach_div))
        for place in ("", "_")
        for kind in ("ScalarList", "Tensor")
    },
    "aten::adaptive_avg_pool2d": adaptive_avg_pool2d,
    "aten::_softmax": softmax(torch.ops.aten._softmax.default),
    "aten::_log_softmax": softmax(torch.ops.aten._log_softmax.default),
    "aten::_softmax_backward_data": softmax_backward(torch.ops.aten._softmax_backward_data.default),
    "aten::_log_softmax_backward_data": softmax_backward(torch.ops.aten._log_softmax_backward_data.default),
    "aten::normal_": normal,
    **{f"aten::normal.{kind}_out": normal_of_each for kind in ("Tensor_float", "float_Tensor", "Tensor_Tensor")},
    "aten::div_.Scalar": divide_,
    "aten::div_.Tensor": divide_,
    "aten::linalg_vector_norm": norm,
    "aten::linalg_vector_norm.out": norm,
    "aten::_foreach_norm.Scalar": norms,
    "aten::_masked_scale": masked_scale,
    "aten::_conv_depthwise2d": depthwise_convolution,
    "aten::one_hot": one_hot,
    "aten::put_": put_,
    "aten::histc": histc,
    "aten::histc.out": histc,
    **{
        f"aten::{name}_{way}": with_int32_target(getattr(torch.ops.aten, f"{name}_{way}").default)
        for name in ("nll_loss", "nll_loss2d", "multilabel_margin_loss")
        for way in ("forward", "backward")
    },
    "aten::multilabel_margin_loss_forward.output": with_int32_target(
        torch.ops.aten.multilabel_margin_loss_forward.output
    ),
    "aten::mm.dtype": in_dtype(torch.mm),
    "aten::bmm.dtype": in_dtype(torch.bmm),
    "aten::addmm.dtype": in_dtype(torch.addmm),
    "aten::baddbmm.dtype": in_dtype(torch.baddbmm),
}
