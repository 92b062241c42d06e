"""GELU, exact or by tanh, also of a sum with a bias (Megatron's bias_gelu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.arguments import check_float, check_shape, check_together
from ascend_adapt.kernels.dispatch import Backend, Call, Kernel

APPROXIMATIONS = ("none", "tanh")


@dataclass(frozen=True)
class GeluCall(Call):
    """The arguments of gelu, checked."""

    x: Any
    bias: Any = None
    approximate: str = "none"


def gelu(x: Any, bias: Any = None, *, approximate: str = "none") -> Any:
    """Return the GELU of x + bias, computed in fp32, in the dtype of ``x``.

    Args:
        x: [..., H].
        bias: [H], or None.
        approximate: ``none``, by the error function; ``tanh``, as GPT-2 and Megatron have it.

    Raises:
        KernelArgumentError: shapes that do not fit, or another approximation.
        BackendUnavailable: a backend was asked for that cannot serve the call.
    """
    check_float("x", x, shape="[..., H]")
    check_shape("bias", bias, x.shape[-1:], f"x {list(x.shape)}")
    check_together("x", x, bias=bias)
    if approximate not in APPROXIMATIONS:
        raise KernelArgumentError(f"approximate={approximate!r}: expected {' or '.join(APPROXIMATIONS)} — correct it")
    return KERNEL(GeluCall(x, bias, approximate))


KERNEL = Kernel(
    "gelu",
    [
        Backend("npu", ("npu",), f"{__name__}._npu"),
        Backend("torch", ("cuda", "cpu"), f"{__name__}._torch"),
        Backend("reference", (), f"{__name__}._reference"),
    ],
)
