"""GELU, exact or with the tanh approximation, optionally of a sum with a bias (Megatron's bias_gelu)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall

APPROXIMATIONS = ("none", "tanh")


@dataclass(eq=False)
class GeluCall(KernelCall):
    """The arguments of gelu."""

    x: Any
    bias: Any = None
    approximate: str = "none"

    def check(self) -> None:
        """Check that shapes and devices match, and that the approximation is known."""
        check_float("x", self.x, shape="[..., H]", least=1)
        check_float_or_none("bias", self.bias, self.x.shape[-1:], f"x {list(self.x.shape)}")
        check_together("x", self.x, bias=self.bias)
        if self.approximate not in APPROXIMATIONS:
            raise KernelArgumentError(
                f"approximate={self.approximate!r}: expected {' or '.join(APPROXIMATIONS)} — correct it"
            )

    def small(self) -> GeluCall:
        """Return a small call with a few rows."""
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(self, x=alike(self.x, small_tensors.ROWS, width), bias=alike(self.bias, width))


def gelu(x: Any, bias: Any = None, *, approximate: str = "none") -> Any:
    """Return the GELU of x + bias, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., H].
        bias: [H], or None.
        approximate: ``none`` uses the error function, ``tanh`` the approximation of GPT-2 and Megatron.

    Raises:
        KernelArgumentError: shapes do not match, or the approximation is unknown.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(GeluCall(x, bias, approximate))


KERNEL = Kernel("gelu")
