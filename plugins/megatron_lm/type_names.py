"""Optimizer functions that identify a dtype by the tensor type name of a GPU."""

from __future__ import annotations

import functools

from ..type_names import type_names
from .releases import HOST, REQUIRES

OPTIMIZER = "megatron.core.optimizer"
HALF = "param.type() in ['torch.cuda.HalfTensor', 'torch.cuda.BFloat16Tensor']"

_type_names = functools.partial(type_names, host=HOST, requires=REQUIRES)
WITH_TYPE_NAMES = (
    _type_names("shard_type_names", f"{OPTIMIZER}.distrib_optimizer:DistributedOptimizer.__init__", HALF),
    _type_names("master_weight_type_names", f"{OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__", HALF),
    _type_names(
        "gradient_type_names",
        f"{OPTIMIZER}.clip_grads:clip_grad_by_total_norm_fp32",
        "param.grad.type() == 'torch.cuda.FloatTensor'",
    ),
)
