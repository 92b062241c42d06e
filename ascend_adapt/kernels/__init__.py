"""Training kernels: each has a contract, a reference that defines it, and backends that agree with the reference."""

from ascend_adapt.kernels import dispatch
from ascend_adapt.kernels.fusion import fuses
from ascend_adapt.kernels.masks import masked_out_from_keep
from ascend_adapt.kernels.operators.adamw import adamw
from ascend_adapt.kernels.operators.add_norm import add_norm
from ascend_adapt.kernels.operators.attention import attention
from ascend_adapt.kernels.operators.bias_dropout_add import bias_dropout_add
from ascend_adapt.kernels.operators.cross_entropy import cross_entropy
from ascend_adapt.kernels.operators.gelu import gelu
from ascend_adapt.kernels.operators.l2_norms import l2_norms
from ascend_adapt.kernels.operators.layer_norm import layer_norm
from ascend_adapt.kernels.operators.linear_cross_entropy import linear_cross_entropy
from ascend_adapt.kernels.operators.masked_softmax import masked_softmax
from ascend_adapt.kernels.operators.rms_norm import rms_norm
from ascend_adapt.kernels.operators.rotary import rotary
from ascend_adapt.kernels.operators.split_qkv import split_qkv
from ascend_adapt.kernels.operators.swiglu import swiglu

__all__ = [
    "adamw",
    "add_norm",
    "attention",
    "bias_dropout_add",
    "cross_entropy",
    "fuses",
    "gelu",
    "l2_norms",
    "layer_norm",
    "linear_cross_entropy",
    "masked_out_from_keep",
    "masked_softmax",
    "rms_norm",
    "rotary",
    "split_qkv",
    "swiglu",
]

dispatch.register(())
