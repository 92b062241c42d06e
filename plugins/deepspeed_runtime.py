"""DeepSpeed on devices it does not build for: nothing is compiled behind the user's back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_adapt import Patch, hookimpl, wrap


@wrap(
    "deepspeed.comm.torch:build_shm_op",
    requires="deepspeed>=0.12.3",
    devices="cpu",
    why="init_distributed compiles deepspeed_shm_comm with g++ for minutes, without a word; a run killed meanwhile "
    "leaves a lock file on which every later run waits for ever; gloo does the same reductions",
    until="DeepSpeed ships the operator compiled, or asks before it compiles",
    without="crash",
)
def no_shared_memory_build(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Use the operator where it was compiled at installation, else let gloo reduce."""
    from deepspeed.git_version_info import installed_ops

    return wrapped(*args, **kwargs) if installed_ops.get("deepspeed_shm_comm") else None


@wrap(
    "deepspeed.ops.op_builder.cpu.fused_adam:FusedAdamBuilder.load",
    requires="deepspeed>=0.12.3",
    devices="cpu",
    why="the optimizer 'Adam' is FusedAdam, which compiles its CPU kernel with g++ when it is made, once a rank at a "
    "time behind a lock file that a killed run leaves behind",
    until="DeepSpeed ships the operator compiled, or falls back to torch",
    without="crash",
)
def fused_adam_in_torch(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Use the operator where it was compiled at installation, else torch's multi-tensor operators."""
    from deepspeed.git_version_info import installed_ops

    return wrapped(*args, **kwargs) if installed_ops.get("fused_adam") else TorchFusedAdam


class TorchFusedAdam:
    """What FusedAdam expects of its compiled module, in torch's foreach operators."""

    @staticmethod
    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: Any,
        tensor_lists: Sequence[Sequence[Any]],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        step: int,
        adam_w_mode: int,
        bias_correction: int,
        weight_decay: float,
    ) -> None:
        """Update parameters and both moments in place, in fp32, as DeepSpeed's CPU kernel does.

        ``tensor_lists`` holds gradients, parameters, first and second moments, each a list of tensors of equal shapes.

        Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2.
        """
        import torch

        grads, params, firsts, seconds = (list(tensors) for tensors in tensor_lists)
        with torch.no_grad():
            grads32, params32, firsts32, seconds32 = (
                [tensor.float() for tensor in tensors] for tensors in (grads, params, firsts, seconds)
            )
            if weight_decay and adam_w_mode:
                torch._foreach_mul_(params32, 1 - lr * weight_decay)
            elif weight_decay:
                grads32 = torch._foreach_add(grads32, params32, alpha=weight_decay)
            torch._foreach_lerp_(firsts32, grads32, 1 - beta1)
            torch._foreach_mul_(seconds32, beta2)
            torch._foreach_addcmul_(seconds32, grads32, grads32, 1 - beta2)
            correction1 = 1 - beta1**step if bias_correction else 1.0
            correction2 = 1 - beta2**step if bias_correction else 1.0
            denominators = torch._foreach_sqrt(seconds32)
            torch._foreach_div_(denominators, correction2**0.5)
            torch._foreach_add_(denominators, eps)
            torch._foreach_addcdiv_(params32, firsts32, denominators, -lr / correction1)
            for kept, computed in ((params, params32), (firsts, firsts32), (seconds, seconds32)):
                for tensor, value in zip(kept, computed, strict=True):
                    if value is not tensor:
                        tensor.copy_(value)


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of this plugin."""
    return [no_shared_memory_build, fused_adam_in_torch]
