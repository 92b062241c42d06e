"""Residual add with the bias and dropout of the branch (Megatron's bias_dropout_add).

Backward regenerates the dropout mask from the seed, and sums the gradient of the bias in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_branch, check_dropout, check_float, check_seed, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class BiasDropoutAddCall(KernelCall):
    """The arguments of bias_dropout_add."""

    x: Any
    branch: Any
    bias: Any = None
    dropout_p: float = 0.0
    seed: Any = None

    def check(self) -> None:
        """Check that shapes, dtypes and devices match."""
        check_float("x", self.x, shape="[..., D]", least=1)
        check_branch(self.x, self.branch, bias=self.bias)
        check_together("x", self.x, branch=self.branch, bias=self.bias)
        check_dropout(self.dropout_p, self.seed)

    def small(self) -> BiasDropoutAddCall | None:
        """Return a small call with a few rows, or None with dropout, because masks depend on the backend."""
        if self.dropout_p:
            return None
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(
            self,
            x=alike(self.x, small_tensors.ROWS, width),
            branch=alike(self.branch, small_tensors.ROWS, width),
            bias=alike(self.bias, width),
        )


def bias_dropout_add(x: Any, branch: Any, bias: Any = None, *, dropout_p: float = 0.0, seed: Any = None) -> Any:
    """Return x + dropout(branch + bias), computed in fp32, [..., D] in the dtype of ``x``.

    Args:
        x: [..., D], the residual stream.
        branch: [..., D], in the dtype of ``x``.
        bias: [D], or None.
        dropout_p: probability with which an element of the branch becomes 0; the others are scaled by 1 / (1 - p). A
            backend may round it to a multiple of 2**-16.
        seed: int64 [1] on the device of ``x``, with dropout only. Equal seeds give equal masks on one backend.

    Raises:
        KernelArgumentError: shapes or dtypes do not match, or only one of dropout and seed is given.
        BackendUnavailable: the requested backend does not support the call.
    """
    if seed is not None:
        check_seed(seed)
    return KERNEL(BiasDropoutAddCall(x, branch, bias, dropout_p, seed))


KERNEL = Kernel("bias_dropout_add")
