"""npu_conv2d, npu_conv3d, npu_convolution, their transposes and gradients, which are torch's convolutions."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import at_least_float32

Gradients = tuple[torch.Tensor | None, ...]

_NO_OUTPUT_PADDING = [0, 0, 0]


@kernel("npu_conv2d", "npu_conv2d.out", "npu_conv3d", "npu_conv3d.out", "npu_convolution")
def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the convolution over the last two or three dimensions of the input."""
    no_padding = _NO_OUTPUT_PADDING[: len(stride)]
    result = _convolution(input, weight, bias, stride, padding, dilation, False, no_padding, groups)
    return result if out is None else out.copy_(result)


@kernel("npu_conv_transpose2d", "npu_convolution_transpose")
def transposed_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """Return the transposed convolution."""
    return _convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@kernel("npu_conv2d_backward", "npu_convolution_backward")
def convolution_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> Gradients:
    """Return the gradients of input, weight and bias that ``output_mask`` selects."""
    no_padding = _NO_OUTPUT_PADDING[: len(stride)]
    sizes = [weight.shape[0]]
    return _backward(
        input, grad_output, weight, sizes, stride, padding, dilation, False, no_padding, groups, output_mask
    )


@kernel("npu_conv3d_backward")
def convolution_3d_backward(
    input: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> Gradients:
    """Return the gradients of input, weight and bias."""
    found: Gradients = convolution_backward(input, grad, weight, stride, padding, dilation, groups, output_mask)
    return found


@kernel("npu_conv_transpose2d_backward", "npu_conv_transpose3d_backward")
def transposed_convolution_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    output_mask: list[bool],
) -> Gradients:
    """Return the gradients of input, weight and bias."""
    sizes = [weight.shape[1] * groups]
    return _backward(
        input, grad_output, weight, sizes, stride, padding, dilation, True, output_padding, groups, output_mask
    )


@kernel("npu_convolution_transpose_backward")
def any_transposed_convolution_backward(
    input: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    grad_input_mask: list[bool],
) -> Gradients:
    """Return the gradients of input, weight and bias."""
    found: Gradients = transposed_convolution_backward(
        input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
    )
    return found


def _convolution(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: object) -> torch.Tensor:
    summed = [None if one is None else at_least_float32(one) for one in (input, weight, bias)]
    result: torch.Tensor = torch.ops.aten.convolution(*summed, *rest)
    return result.to(input.dtype)


def _backward(input: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, *rest: object) -> Gradients:
    summed = [at_least_float32(one.detach()) for one in (grad, input, weight)]
    found = torch.ops.aten.convolution_backward(*summed, *rest)
    return tuple(None if one is None else one.to(input.dtype) for one in found)
