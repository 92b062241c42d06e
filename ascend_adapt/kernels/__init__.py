"""Operations on a device: each has one contract, a reference that defines it, and backends that agree with it.

The functions have the names of their folders: to reach into one, write ``from ascend_adapt.kernels.attention import``.
"""

from ascend_adapt.kernels.attention import attention
from ascend_adapt.kernels.cross_entropy import cross_entropy
from ascend_adapt.kernels.masked_softmax import masked_softmax
from ascend_adapt.kernels.masks import masked_out_from_keep

__all__ = [
    "attention",
    "cross_entropy",
    "masked_out_from_keep",
    "masked_softmax",
]
