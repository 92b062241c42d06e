"""Limits of the dropout operators."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

_WITH_SOFTMAX = document("torch_npu-npu_dropout_with_add_softmax.md")

PROBABILITY = Limit(
    "_npu_dropout, npu_dropout_gen_mask, npu_dropout_do_mask, dropout_with_byte_mask",
    "p is in [0, 1] and the input has a floating dtype",
    check("aclops/DropoutKernelNpu.cpp"),
)
MASK_SIZE = Limit(
    "npu_dropout_do_mask",
    "mask is uint8 with one bit for each element, padded to 128 bits",
    check("aclops/DropoutKernelNpu.cpp"),
)
BYTE_MASK = Limit(
    "_dropout_with_byte_mask_backward",
    "mask is uint8 with one byte for each element of grad_output, which has a floating dtype",
    check("aclops/DropoutWithByteMaskKernelNpu.cpp"),
)
SOFTMAX_SHAPES = Limit(
    "npu_dropout_with_add_softmax",
    "self and x1 have one shape [N, C, H, W]; H and W are 128, 256, 384 or 512; N*C is a multiple of 32",
    _WITH_SOFTMAX,
)
SOFTMAX_DIM = Limit("npu_dropout_with_add_softmax", "dim is -1 and prob is in [0, 1)", _WITH_SOFTMAX)
SOFTMAX_X1_GRADIENT = Limit(
    "npu_dropout_with_add_softmax",
    "x1 does not require grad: the operator returns the incoming gradient unchanged as the gradient of x1",
    check("aclops/DropoutWithAddSoftmaxKernelNpu.cpp"),
    silent=True,
)
