"""Layer normalisation over the last axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_number, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class LayerNormCall(KernelCall):
    """The arguments of layer_norm."""

    x: Any
    weight: Any = None
    bias: Any = None
    eps: float = 1e-5

    def check(self) -> None:
        """Check that shapes and devices match."""
        check_float("x", self.x, shape="[..., D]", least=1)
        check_number("eps", self.eps)
        if self.bias is not None and self.weight is None:
            raise KernelArgumentError("bias: given without a weight, expected both or the weight alone — pass weight=")
        of = f"x {list(self.x.shape)}"
        check_float_or_none("weight", self.weight, self.x.shape[-1:], of)
        check_float_or_none("bias", self.bias, self.x.shape[-1:], of)
        check_together("x", self.x, weight=self.weight, bias=self.bias)

    def small(self) -> LayerNormCall:
        """Return a small call with a few rows."""
        alike, width = small_tensors.maker(), self.x.shape[-1]
        return replace(
            self,
            x=alike(self.x, small_tensors.ROWS, width),
            weight=alike(self.weight, width),
            bias=alike(self.bias, width),
        )


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, computed in fp32.

    Args:
        x: [..., D].
        weight: [D], or None.
        bias: [D], or None.
        eps: added to the variance.

    Returns:
        [..., D] in the dtype of ``x``.

    Raises:
        KernelArgumentError: shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(LayerNormCall(x, weight, bias, eps))


# On an NPU, torch_npu implements torch's layer_norm.
KERNEL = Kernel("layer_norm")
