"""RMS norm over the last axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_number, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class RmsNormCall(KernelCall):
    """The arguments of rms_norm."""

    x: Any
    weight: Any = None
    eps: float = 1e-6

    def check(self) -> None:
        """Check that shapes and devices match."""
        check_float("x", self.x, shape="[..., D]", least=1)
        check_number("eps", self.eps)
        check_float_or_none("weight", self.weight, self.x.shape[-1:], f"x {list(self.x.shape)}")
        check_together("x", self.x, weight=self.weight)

    def small(self) -> RmsNormCall:
        """Return a small call with a few rows."""
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(self, x=alike(self.x, small_tensors.ROWS, width), weight=alike(self.weight, width))


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6) -> Any:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., D].
        weight: [D], or None.
        eps: added to the mean square.

    Raises:
        KernelArgumentError: shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(RmsNormCall(x, weight, eps))


KERNEL = Kernel("rms_norm")
