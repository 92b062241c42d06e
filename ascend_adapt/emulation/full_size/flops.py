"""Floating-point operations of matrix products and attention, from the shapes of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Operations per element of the result and per element of the summed dimension: one product and one addition.
_PRODUCT = 2


def _product(result: torch.Tensor, first: torch.Tensor, *rest: Any) -> int:
    return int(_PRODUCT * result.numel() * first.shape[-1])


def _added_product(result: torch.Tensor, bias: Any, first: torch.Tensor, *rest: Any) -> int:
    return _product(result, first)


def _product_backward(result: Any, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor, mask: Any) -> int:
    """Return the operations of both gradients; each gradient needs as many operations as the forward product."""
    return int(sum(bool(one) for one in mask) * _PRODUCT * grad.numel() * first.shape[-1])


def _linear_backward(result: Any, grad: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> int:
    return int(2 * _PRODUCT * grad.numel() * first.shape[-1])


def _linear_loss(result: Any, first: torch.Tensor, second: torch.Tensor, *rest: Any) -> int:
    return int(_PRODUCT * first.numel() * second.shape[0])


def _linear_loss_backward(result: Any, grad: Any, first: torch.Tensor, second: torch.Tensor, *rest: Any) -> int:
    """Return the operations of both gradients, and of the logits where the softmax, the last argument, is not given."""
    softmax = rest[5] if len(rest) > 5 else None
    return (3 if softmax is None else 2) * _linear_loss(result, first, second)


FORMULAS: dict[str, Callable[..., int]] = {
    **{f"aten::{name}": _product for name in ("mm", "bmm", "matmul", "linear", "mv", "mm.dtype", "bmm.dtype")},
    **{f"aten::{name}": _added_product for name in ("addmm", "baddbmm", "addmm.dtype", "baddbmm.dtype", "addbmm")},
    "aten::matmul_backward": _product_backward,
    "npu::npu_linear": _product,
    "npu::npu_linear_backward": _linear_backward,
    "npu::npu_fused_linear_online_max_sum": _linear_loss,
    "npu::npu_fused_linear_cross_entropy_loss_with_max_sum_backward": _linear_loss_backward,
    "npu::npu_bmmV2": _product,
    "npu::npu_bmm_v2_mat1_backward": lambda result, grad, *rest: _PRODUCT * result.numel() * grad.shape[-1],
    "npu::npu_bmm_v2_mat2_backward": lambda result, grad, *rest: _PRODUCT * result.numel() * grad.shape[-2],
}


def of(operator: str, arguments: tuple[Any, ...], result: Any) -> int:
    """Return the floating-point operations of one call, or 0 if it is neither a matrix product nor attention."""
    name = operator.removesuffix(".out")
    formula = FORMULAS.get(name)
    return formula(result, *arguments) if formula is not None else 0


def of_attention(batch: int, heads: int, rows: int, columns: int, width: int, value_width: int, backward: bool) -> int:
    """Return the operations of attention, including masked positions, as is usual for MFU.

    The forward pass has two products; the backward pass has five, because it recomputes the scores.
    """
    scores = batch * heads * rows * columns
    forward = _PRODUCT * scores * (width + value_width)
    return _PRODUCT * scores * (3 * width + 2 * value_width) if backward else forward


def of_fusion_attention(call: Any, backward: bool) -> int:
    """Return the operations of one call of npu_fusion_attention or of its gradient."""
    given, total = call.arguments, 0
    width, value_width = (
        call.layout.sizes(one, heads)[2] for one, heads in ((given.query, call.heads), (given.value, call.kv_heads))
    )
    for rows, columns in call.places:
        sizes = (call.length(rows, 0), call.length(columns, 1))
        total += of_attention(1, call.heads, *sizes, width, value_width, backward)
    return total
