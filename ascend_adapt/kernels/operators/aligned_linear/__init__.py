"""Linear layer whose output rows start at multiples of 16 bytes, whatever their length.

With a vocabulary of 50257, rows of logits are not aligned. cuBLAS then uses kernels for unaligned data, which are five
to eight times slower on an H100. If the logits are a view of a buffer with wider rows, cuBLAS uses the fast kernels.
"""

from __future__ import annotations

from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.arguments import check_float, check_together

BYTES = 16


def aligned_linear(x: Any, weight: Any) -> Any:
    """Return x W^T, [..., V], in the dtype of both, as a view whose row stride is a multiple of 16 bytes.

    Args:
        x: [..., H].
        weight: [V, H].

    Raises:
        KernelArgumentError: shapes or dtypes do not match.
    """
    check_float("x", x, shape="[..., H]")
    check_float("weight", weight, 2, "[V, H]")
    check_together("x", x, weight=weight)
    if x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        raise KernelArgumentError(
            f"x {x.dtype} {list(x.shape)}, weight {weight.dtype} {list(weight.shape)}: expected [..., H] and [V, H] of "
            "one dtype — pass matching tensors"
        )
    from ascend_adapt.kernels.operators.aligned_linear._torch import linear

    return linear(x, weight)


def is_aligned(columns: int, dtype: Any) -> bool:
    """Return whether contiguous rows of that many elements start at multiples of 16 bytes."""
    return bool(columns * dtype.itemsize % BYTES == 0)
