"""Queries, keys and values of a fused projection, as views. Backward writes their gradients into one tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import small_tensors
from ascend_adapt.kernels.arguments import check_float, check_float_or_none, check_together
from ascend_adapt.kernels.dispatch import Kernel
from ascend_adapt.kernels.operation import KernelCall


@dataclass(eq=False)
class SplitQkvCall(KernelCall):
    """The arguments of split_qkv."""

    fused: Any
    heads: int
    groups: int
    bias: Any = None

    def check(self) -> None:
        """Check that shapes and devices match."""
        check_float("fused", self.fused, 3, "[B, S, (N + 2 G) D]")
        width = self.fused.shape[-1]
        if self.groups < 1 or self.heads % self.groups or width % (self.heads + 2 * self.groups):
            raise KernelArgumentError(
                f"fused: has {width} columns for {self.heads} heads and {self.groups} groups, expected a multiple of "
                "heads + 2 groups, and heads a multiple of groups — correct the numbers"
            )
        check_float_or_none("bias", self.bias, (width,), f"fused {list(self.fused.shape)}")
        check_together("fused", self.fused, bias=self.bias)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.fused.shape[-1]) // (self.heads + 2 * self.groups)

    def small(self) -> SplitQkvCall:
        """Return a small call with a few tokens."""
        alike, width = small_tensors.maker(), self.fused.shape[-1]
        return replace(self, fused=alike(self.fused, 2, small_tensors.ROWS, width), bias=alike(self.bias, width))


def split_qkv(fused: Any, heads: int, groups: int, bias: Any = None) -> Any:
    """Return the queries, keys and values of a fused projection, as views of ``fused``.

    Args:
        fused: [B, S, (N + 2 G) D]. Each of G groups has N / G query heads, then a key head and a value head.
        heads: N, the number of query heads.
        groups: G, the number of key and value heads.
        bias: [(N + 2 G) D], already added to ``fused``, whose gradient is computed here; or None, for no bias, or a
            bias whose gradient autograd computes elsewhere.

    Returns:
        (q, k, v): [B, N, S, D] and twice [B, G, S, D].

    Raises:
        KernelArgumentError: the width does not match the heads.
        BackendUnavailable: the requested backend does not support the call.
    """
    return KERNEL(SplitQkvCall(fused, heads, groups, bias))


KERNEL = Kernel("split_qkv")
