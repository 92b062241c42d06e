"""Fused residual add and norm: LayerNorm or RMSNorm of x plus a branch, with the branch's bias and dropout.

A transformer block adds the output of a linear layer to the residual stream and normalises the sum. This kernel adds
the layer's bias in the same pass. Its backward sums the gradient of the bias in the pass that computes the gradient of
the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import (
    check_branch,
    check_dropout,
    check_float,
    check_float_or_none,
    check_number,
    check_seed,
    check_together,
)
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class AddNormCall(KernelCall):
    """The arguments of add_norm."""

    x: Any
    branch: Any
    branch_bias: Any = None
    weight: Any = None
    bias: Any = None
    eps: float = 1e-5
    rms: bool = False
    dropout_p: float = 0.0
    seed: Any = None

    def check(self) -> None:
        """Check that shapes, dtypes and devices match."""
        check_float("x", self.x, shape="[..., D]", least=1)
        check_branch(self.x, self.branch, branch_bias=self.branch_bias)
        check_number("eps", self.eps)
        for name in ("weight", "bias"):
            check_float_or_none(name, getattr(self, name), self.x.shape[-1:], f"x {list(self.x.shape)}")
        check_together(
            "x", self.x, branch=self.branch, branch_bias=self.branch_bias, weight=self.weight, bias=self.bias
        )
        if self.weight is None or (self.rms and self.bias is not None):
            found = "no weight" if self.weight is None else "a bias with rms=True"
            raise KernelArgumentError(f"weight and bias: {found}, expected a weight, and a bias for LayerNorm only")
        check_dropout(self.dropout_p, self.seed)

    def small(self) -> AddNormCall | None:
        """Return a small call with a few rows, or None with dropout, because masks depend on the backend."""
        if self.dropout_p:
            return None
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(
            self,
            x=alike(self.x, small_tensors.ROWS, width),
            branch=alike(self.branch, small_tensors.ROWS, width),
            branch_bias=alike(self.branch_bias, width),
            weight=alike(self.weight, width),
            bias=alike(self.bias, width),
        )


def add_norm(
    x: Any,
    branch: Any,
    branch_bias: Any = None,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    rms: bool = False,
    dropout_p: float = 0.0,
    seed: Any = None,
) -> Any:
    """Return y = x + dropout(branch + branch_bias), and its norm over the last axis, computed in fp32.

    Args:
        x: [..., D], the residual stream.
        branch: [..., D], in the dtype of ``x``.
        branch_bias: [D], or None.
        weight: [D].
        bias: [D], or None; only for LayerNorm.
        eps: added to the variance, or to the mean square.
        rms: whether to compute RMSNorm instead of LayerNorm.
        dropout_p: probability with which an element of the branch becomes 0; the others are scaled by 1 / (1 - p). A
            backend may round it to a multiple of 2**-16.
        seed: int64 [1] on the device of ``x``, with dropout only. Equal seeds give equal masks on one backend.

    Returns:
        (y, norm), both [..., D] in the dtype of ``x``. The norm may be computed from y after rounding to that dtype.

    Raises:
        KernelArgumentError: shapes or dtypes do not match, or only one of dropout and seed is given.
        BackendUnavailable: the requested backend does not support the call.
    """
    if seed is not None:
        check_seed(seed)
    return KERNEL(AddNormCall(x, branch, branch_bias, weight, bias, eps, rms, dropout_p, seed))


KERNEL = Kernel("add_norm")
