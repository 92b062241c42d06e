"""Optimizers that identify a dtype by the tensor type name of a GPU."""

from __future__ import annotations

from ..code_bases import BIGSCIENCE, GLM, MEGATRON_DEEPSPEED
from ..type_names import CPU, type_names

_OPTIMIZER = "megatron.optimizer"
WITH_TYPE_NAMES = (
    type_names(
        "gradient_type_names",
        f"{_OPTIMIZER}.clip_grads:clip_grad_norm_fp32",
        "param.grad.type() == 'torch.cuda.FloatTensor'",
        host=BIGSCIENCE,
    ),
    type_names(
        "master_weight_type_names",
        f"{_OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__",
        "param.type() == 'torch.cuda.FloatTensor'",
        host=BIGSCIENCE,
    ),
    type_names(
        "master_weight_type_names_by_accelerator",
        f"{_OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__",
        "param.type() == 'torch.{}.FloatTensor'.format(format(get_accelerator().device_name()))",
        host=MEGATRON_DEEPSPEED,
        named=CPU,
    ),
    type_names(
        "shard_type_names",
        f"{_OPTIMIZER}.distrib_optimizer:DistributedOptimizer.build_model_and_main_param_groups",
        "model_param.type() == 'torch.cuda.FloatTensor'",
        host=MEGATRON_DEEPSPEED,
    ),
    type_names(
        "glm_master_weight_type_names",
        "fp16.fp16:FP16_Optimizer.__init__",
        "param.type() == 'torch.cuda.FloatTensor'",
        host=GLM,
    ),
)
