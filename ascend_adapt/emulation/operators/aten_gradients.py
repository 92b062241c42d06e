"""Backward operators that torch_npu's autograd uses for torch operators.

torch_npu differentiates kl_div, l1_loss, renorm and others itself (op-plugin@517f2e7 config/derivatives.yaml), so their
backward passes call these operators. npu_silu is torch's silu under another name.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide

_MEAN = 1
"""at::Reduction: 0 none, 1 mean, 2 sum."""


@kernel("l1_loss_backward")
def l1_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Return the gradient of the input of l1_loss."""
    slope = (wide(self) - wide(target)).sign() * wide(grad_output)
    return (slope / slope.numel() if reduction == _MEAN else slope).to(self.dtype)


@kernel("kl_div_backward")
def kl_div_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, log_target: bool
) -> torch.Tensor:
    """Return the gradient of the input of kl_div."""
    slope = -(wide(target).exp() if log_target else wide(target)) * wide(grad_output)
    return (slope / slope.numel() if reduction == _MEAN else slope).expand_as(self).to(self.dtype)


@kernel("kl_div_target_backward")
def kl_div_target_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, log_target: bool
) -> torch.Tensor:
    """Return the gradient of the target of kl_div; it is zero where the target is 0."""
    goal, guess = wide(target), wide(self)
    slope = (goal + 1 - guess) * goal.exp() if log_target else (goal.log() + 1 - guess).masked_fill(goal <= 0, 0)
    slope = slope * wide(grad_output)
    return (slope / slope.numel() if reduction == _MEAN else slope).to(target.dtype)


@kernel("repeat_interleave_backward_int")
def repeat_interleave_backward(grad: torch.Tensor, self: torch.Tensor, repeats: int, dim: int | None) -> torch.Tensor:
    """Return the gradient of the input, summed over the repeats."""
    counts = torch.full((self.numel() if dim is None else self.shape[dim],), int(repeats))
    return repeat_interleave_backward_by_counts(grad, self, counts, dim)


@kernel("repeat_interleave_backward_tensor")
def repeat_interleave_backward_by_counts(
    grad: torch.Tensor, self: torch.Tensor, repeats: torch.Tensor, dim: int | None
) -> torch.Tensor:
    """Return the gradient of the input, summed over the repeats of each slice."""
    flat = wide(self).reshape(-1) if dim is None else wide(self)
    axis = 0 if dim is None else dim
    counts = repeats.expand(flat.shape[axis])
    owners = torch.arange(flat.shape[axis]).repeat_interleave(counts)
    return torch.zeros_like(flat).index_add(axis, owners, wide(grad)).reshape(self.shape).to(self.dtype)


@kernel("npu_renorm_backward")
def renorm_backward(grad: torch.Tensor, self: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Return the gradient of the input of renorm; slices within the norm pass it unchanged."""
    x = wide(self).requires_grad_()
    with torch.enable_grad():
        result = torch.renorm(x, p, dim, maxnorm)
    return torch.autograd.grad(result, x, wide(grad))[0].to(grad.dtype)


@kernel("npu_silu")
def silu(self: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(x)."""
    return torch.nn.functional.silu(wide(self)).to(self.dtype)


@kernel("npu_silu_backward")
def silu_backward(grad_output: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input."""
    x = wide(x0)
    gate = torch.sigmoid(x)
    return (wide(grad_output) * gate * (1 + x * (1 - gate))).to(x0.dtype)


@kernel("npu_binary_cross_entropy_with_logits_backward")
def binary_cross_entropy_with_logits_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight_opt: torch.Tensor | None,
    pos_weight_opt: torch.Tensor | None,
    reduction: int,
) -> torch.Tensor:
    """Return the gradient of the logits."""
    goal, share = wide(target), torch.sigmoid(wide(self))
    positive = goal if pos_weight_opt is None else goal * wide(pos_weight_opt)
    slope = (positive + 1 - goal) * share - positive
    slope = slope * wide(grad_output) * (1 if weight_opt is None else wide(weight_opt))
    return (slope / slope.numel() if reduction == _MEAN else slope).to(self.dtype)


@kernel("fft_r2c_backward")
def fft_r2c_backward(
    grad: torch.Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int
) -> torch.Tensor:
    """Return the gradient of a real input (pytorch@v2.13.0 torch/csrc/autograd/FunctionsManual.cpp)."""
    if not onesided:
        return torch.ops.aten._fft_c2c(grad, dim, normalization, False).real
    last = dim[-1]
    whole = torch.nn.functional.pad(grad.movedim(last, -1), (0, last_dim_size - grad.shape[last])).movedim(-1, last)
    return torch.ops.aten._fft_c2c(whole, dim, normalization, False).real


@kernel("fft_c2r_backward")
def fft_c2r_backward(grad: torch.Tensor, dim: list[int], normalization: int) -> torch.Tensor:
    """Return the gradient of a half-complex input, including the gradient of its mirrored half (same source)."""
    result = torch.ops.aten._fft_r2c(grad, dim, normalization, True)
    last = dim[-1]
    doubled = grad.shape[last] - result.shape[last]
    if doubled > 0:
        result.narrow(last, 1, doubled).mul_(2)
    return result


@kernel("stft_backward")
def stft_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: torch.Tensor | None,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
) -> torch.Tensor:
    """Return the gradient of the signal for an uncentered stft; a centered stft is padding and this operator."""
    signal = self.detach().requires_grad_()
    taper = None if window is None else window.detach()
    sides = {"normalized": normalized, "onesided": onesided, "return_complex": True}
    with torch.enable_grad():
        result = torch.stft(signal, n_fft, hop_length, win_length, taper, center=False, **sides)
    returns_complex = grad_output.is_complex() if return_complex is None else return_complex
    grad = grad_output if returns_complex else torch.view_as_complex(grad_output.contiguous())
    return torch.autograd.grad(result, signal, grad)[0]
