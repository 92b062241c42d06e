"""Products of a sparse and a dense matrix on an NPU, which torch_npu lacks and rejects.

Source: Ascend/pytorch@9e73e708 csrc/aten/VariableFallbackKernel.cpp, op-plugin@517f2e7 config/op_plugin_functions.yaml.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

_KEY = "SparsePrivateUse1"
_library: Any = None
_reported = False


def install() -> None:
    """Register a product for sparse matrices on NPUs, unless torch_npu has one; the product runs on the NPU."""
    global _library
    if _library is None and not torch._C._dispatch_has_kernel_for_dispatch_key("aten::addmm", _KEY):
        _library = torch.library.Library("aten", "IMPL")
        _library.impl("addmm", addmm, _KEY)
        _library.impl("addmm.out", _addmm_out, _KEY)
        _library.impl("bmm", _bmm, _KEY)
        _library.impl("matmul_backward", _matmul_backward, _KEY)


def addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """Return ``beta * self + alpha * mat1 @ mat2`` as a dense matrix; one of the factors is sparse."""
    _report_once()
    product = _product(mat1, mat2) if mat1.is_sparse else _product(mat2.t(), mat1.t()).t()
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (self if beta == 1 else self * beta)


def _addmm_out(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    result = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return out.resize_(result.shape).copy_(result)


def _bmm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.mm(one, other) for one, other in zip(self.unbind(), mat2.unbind(), strict=True)])


def _matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return grad @ other.t() if mask[0] else None, self.t() @ grad if mask[1] else None


def _product(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    if dense.is_sparse:
        raise NotImplementedError(
            "a product of two sparse matrices: torch_npu does not support it, expected one dense matrix "
            "— call to_dense() on one of them"
        )
    (rows, columns), values = sparse._indices(), sparse._values()
    # 16-bit sums would be rounded after every term.
    sums = torch.promote_types(dense.dtype, torch.float32) if dense.is_floating_point() else dense.dtype
    terms = dense.index_select(0, columns).to(sums) * values.to(sums).unsqueeze(1)
    return terms.new_zeros(sparse.shape[0], dense.shape[1]).index_add_(0, rows, terms).to(dense.dtype)


def _report_once() -> None:
    """Report once, on rank 0, how products of sparse matrices are computed."""
    global _reported
    if not _reported and os.environ.get("RANK", "0") == "0":
        print(
            "ascend_adapt: torch_npu has no product of sparse matrices: it is computed from the rows of the dense "
            "matrix, on the NPU",
            file=sys.stderr,
        )
    _reported = True
