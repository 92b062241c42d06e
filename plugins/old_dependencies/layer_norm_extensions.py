"""Replacements of CUDA extensions for layer norm, with torch operators."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ascend_adapt import Patch, provide

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


def forward_affine(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float, *_: Any) -> tuple[Any, Any, Any]:
    """Return the layer norm of ``x`` over its last axes ``shape``, and each row's mean and 1 / deviation.

    Source: bigscience-workshop/Megatron-DeepSpeed@8387ae17 megatron/fused_kernels/layer_norm_cuda.cpp.
    """
    import torch

    x, weight_, bias_ = _in_one_dtype(x, weight, bias)
    output, mean, inverse = torch.native_layer_norm(x, list(shape), weight_, bias_, eps)
    return output.to(weight.dtype), mean, inverse


def backward_affine(
    grad: Any, mean: Any, inverse: Any, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float, *_: Any
) -> tuple[Any, Any, Any]:
    """Return the gradients of input, weight and bias, each in the dtype of its tensor."""
    import torch

    x_, weight_, bias_ = _in_one_dtype(x, weight, bias)
    grads = torch.ops.aten.native_layer_norm_backward(
        grad.to(x_.dtype), x_, list(shape), mean, inverse, weight_, bias_, [True, True, True]
    )
    return tuple(grad.to(of.dtype) for grad, of in zip(grads, (x, weight, bias), strict=True))


def _in_one_dtype(x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Convert all three tensors to the wider dtype, in which the extension computes."""
    import torch

    wide = torch.promote_types(x.dtype, weight.dtype)
    return x.to(wide), weight.to(wide), bias.to(wide)


def _fill(module: ModuleType) -> None:
    module.forward_affine = forward_affine  # type: ignore[attr-defined]
    module.backward_affine = backward_affine  # type: ignore[attr-defined]


def _provided(name: str, host: str) -> Patch:
    return provide(
        name,
        name=name.removesuffix("_cuda"),
        host=host,
        why="every layer norm imports this CUDA extension in its constructor",
        until="the code base has a layer norm without the extension",
        without="crash",
    )(_fill)


PROVIDED = (
    _provided("fused_mix_prec_layer_norm_cuda", BIGSCIENCE),
    _provided("fused_layer_norm_cuda", MEGATRON_DEEPSPEED),
)
