"""Layer norms and group norms of torch_npu: npu_layer_norm_eval, which has no gradient, and fused variants."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import layer_norm as limits


@kernel("npu_layer_norm_eval")
def layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Return the layer norm over the last dimensions, in the input's dtype."""
    normalised = list(normalized_shape)
    parts = {"weight": weight, "bias": bias}
    found = ", ".join(f"{name} is {shape(part)}" for name, part in parts.items() if part is not None)
    fits = list(input.shape[-len(normalised) :]) == normalised
    fits = fits and all(part is None or list(part.shape) == normalised for part in parts.values())
    limits.SHAPES.require(fits, f"normalized_shape is {normalised}, input is {shape(input)}, {found or 'no weight'}")
    asks = [name for name, part in {"input": input, **parts}.items() if part is not None and part.requires_grad]
    limits.NO_GRADIENT.require(not asks, f"{', '.join(asks)} requires grad")
    result = torch.nn.functional.layer_norm(
        wide(input),
        normalised,
        None if weight is None else weight.detach().to(wide(input).dtype),
        None if bias is None else bias.detach().to(wide(input).dtype),
        eps,
    )
    return result.to(input.dtype)


@kernel("npu_add_layer_norm", needs_a2=True)
def add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float,
    additional_output: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layer norm of x1 + x2, its mean and reciprocal deviation (float32), and x1 + x2 or an empty tensor.

    If x1 and x2 have different dtypes, the norm and the sum are in float32.
    """
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    total = wide(x1) + wide(x2)
    mean, rstd = _moments(total, gamma, epsilon)
    y = (total - mean) * rstd * wide(gamma) + wide(beta)
    sum_of_both = total.to(dtype) if additional_output else total.new_empty(0, dtype=dtype)
    return y.to(dtype), mean.float(), rstd.float(), sum_of_both


@kernel("npu_add_layer_norm_backward", needs_a2=True)
def add_layer_norm_backward(
    dy_opt: torch.Tensor | None,
    x1: torch.Tensor,
    x2: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor,
    gamma: torch.Tensor,
    dsum_opt: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x1, x2, gamma and beta; the last two are in float32."""
    dy = torch.zeros_like(wide(x1)) if dy_opt is None else wide(dy_opt)
    dx, of_gamma, of_beta = _gradients(dy, wide(x1) + wide(x2), gamma, mean, rstd)
    dx = dx if dsum_opt is None or dsum_opt.numel() == 0 else dx + wide(dsum_opt)
    return dx.to(x1.dtype), dx.to(x2.dtype), of_gamma, of_beta


@kernel("npu_deep_norm", needs_a2=True)
def deep_norm(
    x: torch.Tensor, gx: torch.Tensor, beta: torch.Tensor, gamma: torch.Tensor, alpha: float, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the mean and reciprocal deviation (float32), and the layer norm of alpha * x + gx."""
    total = alpha * wide(x) + wide(gx)
    mean, rstd = _moments(total, gamma, epsilon)
    y = (total - mean) * rstd * wide(gamma) + wide(beta)
    return mean.float(), rstd.float(), y.to(x.dtype)


@kernel("npu_deep_norm_backward", needs_a2=True)
def deep_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gx: torch.Tensor,
    gamma: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    alpha: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, gx, beta and gamma; the last two are in float32."""
    dx, of_gamma, of_beta = _gradients(wide(dy), alpha * wide(x) + wide(gx), gamma, mean, rstd)
    return (alpha * dx).to(x.dtype), dx.to(gx.dtype), of_beta, of_gamma


@kernel("npu_group_norm_silu", needs_a2=True)
def group_norm_silu(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, group: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the SiLU of the group norm, and the mean and reciprocal deviation of each group [B, G]."""
    return _group_norm_swish(input, group, weight, bias, eps, 1.0)


@kernel("npu_group_norm_swish", needs_a2=True)
def group_norm_swish(
    input: torch.Tensor, num_groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float, swish_scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return z * sigmoid(swish_scale * z) for the group norm z, and the mean and reciprocal deviation of each group."""
    return _group_norm_swish(input, num_groups, weight, bias, eps, swish_scale)


@kernel("npu_group_norm_swish_grad", needs_a2=True)
def group_norm_swish_grad(
    grad: torch.Tensor,
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    grad_input_mask: list[bool],
    swish_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of input, weight and bias."""
    batch, channels = input.shape[:2]
    inner = input[0, 0].numel()
    x = wide(input)
    shaped = [-1, *[1] * (input.dim() - 2)]
    unit = x.reshape(batch, num_groups, -1) - wide(mean).reshape(batch, num_groups, 1)
    unit = (unit * wide(rstd).reshape(batch, num_groups, 1)).reshape(x.shape)
    z = unit * wide(weight).reshape(shaped) + wide(bias).reshape(shaped)
    gate = torch.sigmoid(swish_scale * z)
    dz = wide(grad) * gate * (1 + swish_scale * z * (1 - gate))
    like = x.dtype
    dx, of_weight, of_bias = torch.ops.aten.native_group_norm_backward(
        dz, x, mean.to(like), rstd.to(like), weight.to(like), batch, channels, inner, num_groups, [True] * 3
    )
    return dx.to(input.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype)


def _group_norm_swish(
    x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, channels = x.shape[:2]
    parts = [None if part is None else wide(part).to(wide(x).dtype) for part in (weight, bias)]
    z, mean, rstd = torch.native_group_norm(wide(x), *parts, batch, channels, x[0, 0].numel(), groups, eps)
    return (z * torch.sigmoid(scale * z)).to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def _moments(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and reciprocal standard deviation over the dimensions of gamma."""
    axes = tuple(range(-gamma.dim(), 0))
    mean = x.mean(axes, keepdim=True)
    return mean, torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + epsilon)


def _gradients(
    dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of the input, gamma and beta of a layer norm."""
    axes = tuple(range(-gamma.dim(), 0))
    unit, scaled = (x - mean) * rstd, dy * wide(gamma)
    dx = rstd * (scaled - scaled.mean(axes, keepdim=True) - unit * (scaled * unit).mean(axes, keepdim=True))
    rows = [-1, *gamma.shape]
    return dx, (dy * unit).reshape(rows).sum(0).float(), dy.reshape(rows).sum(0).float()
