"""Functions that know a dtype by the name that a tensor's type has on a GPU: ``'torch.cuda.FloatTensor'``."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, wrap

from ..code_bases import BIGSCIENCE, GLM, MEGATRON_DEEPSPEED

CUDA = "cuda"
CPU = "cpu"  # what DeepSpeed's accelerator calls itself there; the type is 'torch.FloatTensor'


def type_names(name: str, target: str, comparison: str, *, host: str | tuple[str, ...], named: str = CUDA) -> Patch:
    """Return the patch that lets ``target`` see types named as on ``named``: ``'torch.cuda.FloatTensor'``."""

    @wrap(
        target,
        name=name,
        host=host,
        devices=("cpu", "npu") if named == CUDA else "cpu",
        why=f"it compares with 'torch.{named}.FloatTensor', which has another name on this device",
        until="the code base asks for the dtype",
        without="crash",
        symptom=Symptom(comparison),
    )
    def with_type_names(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run with the names of types that it compares with."""
        from ._type_names import TypeNames

        with TypeNames(named):
            return wrapped(*args, **kwargs)

    return with_type_names


_OPTIMIZER = "megatron.optimizer"
WITH_TYPE_NAMES = (
    type_names(
        "type_names_of_gradients",
        f"{_OPTIMIZER}.clip_grads:clip_grad_norm_fp32",
        "param.grad.type() == 'torch.cuda.FloatTensor'",
        host=BIGSCIENCE,
    ),
    type_names(
        "type_names_of_masters",
        f"{_OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__",
        "param.type() == 'torch.cuda.FloatTensor'",
        host=BIGSCIENCE,
    ),
    type_names(
        "type_names_of_masters_by_accelerator",
        f"{_OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__",
        "param.type() == 'torch.{}.FloatTensor'.format(format(get_accelerator().device_name()))",
        host=MEGATRON_DEEPSPEED,
        named=CPU,
    ),
    type_names(
        "type_names_of_shards",
        f"{_OPTIMIZER}.distrib_optimizer:DistributedOptimizer.build_model_and_main_param_groups",
        "model_param.type() == 'torch.cuda.FloatTensor'",
        host=MEGATRON_DEEPSPEED,
    ),
    type_names(
        "type_names_of_glm_masters",
        "fp16.fp16:FP16_Optimizer.__init__",
        "param.type() == 'torch.cuda.FloatTensor'",
        host=GLM,
    ),
)
