"""SwiGLU: SiLU of the first half of the last axis times the second half."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class SwigluCall(KernelCall):
    """The arguments of swiglu."""

    x: Any
    bias: Any = None

    def check(self) -> None:
        """Check that the last axis is even, and that shapes and devices match."""
        x = self.x
        check_float("x", x, shape="[..., 2 H]", least=1)
        if x.shape[-1] % 2:
            raise KernelArgumentError(f"x: has shape {list(x.shape)}, expected an even last axis — pass both halves")
        check_float_or_none("bias", self.bias, x.shape[-1:], f"x {list(x.shape)}")
        check_together("x", x, bias=self.bias)

    def small(self) -> SwigluCall:
        """Return a small call with a few rows."""
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(self, x=alike(self.x, small_tensors.ROWS, width), bias=alike(self.bias, width))


def swiglu(x: Any, bias: Any = None) -> Any:
    """Return silu(a) * b for the halves a, b of the last axis of x + bias, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., 2 H].
        bias: [2 H], or None.

    Returns:
        [..., H].

    Raises:
        KernelArgumentError: the size of the last axis is odd, or shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(SwigluCall(x, bias))


KERNEL = Kernel("swiglu")
