"""Operations on a device: each has one contract, a reference that defines it, and backends that agree with it.

The functions have the names of their folders: to reach into one, write ``from ascend_adapt.kernels.attention import``.
"""

from ascend_adapt.kernels.adamw import adamw
from ascend_adapt.kernels.attention import attention
from ascend_adapt.kernels.cross_entropy import cross_entropy
from ascend_adapt.kernels.gelu import gelu
from ascend_adapt.kernels.layer_norm import layer_norm
from ascend_adapt.kernels.linear_cross_entropy import linear_cross_entropy
from ascend_adapt.kernels.masked_softmax import masked_softmax
from ascend_adapt.kernels.masks import masked_out_from_keep
from ascend_adapt.kernels.rms_norm import rms_norm
from ascend_adapt.kernels.rotary import rotary
from ascend_adapt.kernels.swiglu import swiglu

__all__ = [
    "adamw",
    "attention",
    "cross_entropy",
    "gelu",
    "layer_norm",
    "linear_cross_entropy",
    "masked_out_from_keep",
    "masked_softmax",
    "rms_norm",
    "rotary",
    "swiglu",
]
