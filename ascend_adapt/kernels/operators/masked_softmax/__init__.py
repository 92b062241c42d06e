"""Softmax of attention scores, with the mask contract of ``ascend_adapt.kernels.masks``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.kernels import masks, small_tensors
from ascend_adapt.kernels.arguments import check_float, check_number
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall

EXACT, FINITE, FINITE_ZEROED = "exact", "finite", "finite zeroed"
"""Fill of masked-out scores, and the result of fully masked rows.

EXACT fills with minus infinity and returns zeros. FINITE fills with -10000 and returns a uniform row. FINITE_ZEROED
fills with -10000 and returns zeros in each row whose maximum is -10000. Megatron's extensions use the finite fills.
"""
FILL = -10000.0


@dataclass(eq=False)
class MaskedSoftmaxCall(KernelCall):
    """The arguments of masked_softmax."""

    x: Any
    masked_out: Any = None
    scale: Any = 1.0
    causal: bool = False
    fill: str = EXACT

    def check(self) -> None:
        """Check that the mask is bool, and that shapes and devices match."""
        check_float("x", self.x, shape="scores [B, N, Q, K]", least=2)
        check_number("scale", self.scale)
        masks.check_masked_out(self.masked_out, self.x.shape, self.x.device)

    def small(self) -> MaskedSoftmaxCall:
        """Return a call with the last queries and keys of one head."""
        rows, columns = (min(small_tensors.SIDE, size) for size in self.x.shape[-2:])
        x = small_tensors.maker()(self.x, *[1] * (self.x.dim() - 2), rows, columns)
        return replace(self, x=x, masked_out=small_tensors.corner(self.masked_out, rows, columns))


def masked_softmax(x: Any, *, masked_out: Any = None, scale: Any = 1.0, causal: bool = False) -> Any:
    """Return the masked softmax of scale * x over the last axis, computed in fp32.

    Args:
        x: scores [B, N, Q, K], or with fewer leading axes; fp16, bf16, fp32 or fp64 (computed in fp64).
        masked_out: bool, broadcasts to ``x``; True = masked.
        scale: a number or a one-element tensor.
        causal: whether to mask the keys after each query, aligned to the last key.

    Returns:
        Probabilities, in the shape and dtype of ``x``. Masked-out entries are exactly 0. A fully masked row and its
        gradient are all zeros.

    Raises:
        KernelArgumentError: the mask is not bool, or shapes do not match.
        BackendUnavailable: the requested backend does not support the call.
    """
    return masked_softmax_as(EXACT, x, masked_out=masked_out, scale=scale, causal=causal)


def masked_softmax_as(fill: str, x: Any, *, masked_out: Any = None, scale: Any = 1.0, causal: bool = False) -> Any:
    """Return masked_softmax with this ``fill``. Keys that ``causal`` masks are exactly 0 with every fill."""
    return KERNEL(MaskedSoftmaxCall(x, masked_out, scale, bool(causal), fill if masked_out is not None else EXACT))


KERNEL = Kernel("masked_softmax")
