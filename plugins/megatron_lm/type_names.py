"""Functions of the optimizer that know a parameter's dtype by the name that a tensor's type has on a GPU."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, wrap

from .releases import HOST, REQUIRES

OPTIMIZER = "megatron.core.optimizer"
HALF = "param.type() in ['torch.cuda.HalfTensor', 'torch.cuda.BFloat16Tensor']"


def type_names(name: str, target: str, comparison: str) -> Patch:
    """Return the patch that lets ``target`` see the names of types that a GPU has."""

    @wrap(
        target,
        name=name,
        requires=REQUIRES,
        host=HOST,
        devices=("cpu", "npu"),
        why="it compares with 'torch.cuda.FloatTensor', which is 'torch.FloatTensor' or 'torch.npu.FloatTensor' here",
        until="Megatron-core asks for the dtype",
        without="crash",
        symptom=Symptom(comparison),
    )
    def with_type_names(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run with the names of types that a GPU has."""
        from ._cuda_type_names import CudaTypeNames

        with CudaTypeNames():
            return wrapped(*args, **kwargs)

    return with_type_names


WITH_TYPE_NAMES = (
    # Of it and of all that it calls.
    type_names("type_names_of_shards", f"{OPTIMIZER}.distrib_optimizer:DistributedOptimizer.__init__", HALF),
    type_names("type_names_of_masters", f"{OPTIMIZER}.optimizer:Float16OptimizerWithFloat16Params.__init__", HALF),
    type_names(
        "type_names_of_gradients",
        f"{OPTIMIZER}.clip_grads:clip_grad_by_total_norm_fp32",
        "param.grad.type() == 'torch.cuda.FloatTensor'",
    ),
)
