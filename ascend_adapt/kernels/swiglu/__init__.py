"""SiLU of one half of the last axis, times the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.arguments import check_float, check_shape, check_together
from ascend_adapt.kernels.dispatch import Backend, Call, Kernel


@dataclass(frozen=True)
class SwigluCall(Call):
    """The arguments of swiglu, checked."""

    x: Any
    bias: Any = None


def swiglu(x: Any, bias: Any = None) -> Any:
    """Return silu(a) * b for the halves a, b of the last axis of x + bias, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., 2 H].
        bias: [2 H], or None.

    Returns:
        [..., H].

    Raises:
        KernelArgumentError: an odd last axis, or shapes that do not fit.
        BackendUnavailable: a backend was asked for that cannot serve the call.
    """
    check_float("x", x, shape="[..., 2 H]")
    if x.dim() == 0 or x.shape[-1] % 2:
        raise KernelArgumentError(f"x: has shape {list(x.shape)}, expected an even last axis — give both halves")
    check_shape("bias", bias, x.shape[-1:], f"x {list(x.shape)}")
    check_together("x", x, bias=bias)
    return KERNEL(SwigluCall(x, bias))


KERNEL = Kernel(
    "swiglu",
    [
        Backend("npu", ("npu",), f"{__name__}._npu"),
        Backend("reference", (), f"{__name__}._reference"),
    ],
)
