"""torch replacements for operators that DeepSpeed compiles at run time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from ascend_adapt import Call, Symptom, wrap

UNTIL_SHIPPED = "DeepSpeed ships the operator compiled, or only compiles it on request"


@wrap(
    "deepspeed.comm.torch:build_shm_op",
    requires="deepspeed>=0.14.2",
    devices="cpu",
    why="init_distributed silently compiles deepspeed_shm_comm with g++ for minutes; a run killed meanwhile leaves a "
    "lock file for which every later run waits forever; gloo does the same reductions",
    until=UNTIL_SHIPPED,
    without="crash",
    symptom=Symptom("build_shm_op()", at="deepspeed.comm.torch:TorchBackend"),
)
def no_shared_memory_build(call: Call) -> Any:
    """Use the operator if it was compiled at installation, or else gloo."""
    return call.proceed() if is_installed("deepspeed_shm_comm") else None


BY_ACCELERATOR = Symptom(reason="which builder is used depends on the selected accelerator")
_WHY_ADAM = (
    "the optimizer 'Adam' is FusedAdam, whose constructor compiles its kernel, one rank at a time behind a lock file "
    "that a killed run leaves behind"
)


@wrap(
    "deepspeed.ops.op_builder.cpu.fused_adam:FusedAdamBuilder.load",
    requires="deepspeed>=0.14.1",
    devices="cpu",
    why=_WHY_ADAM,
    until=UNTIL_SHIPPED,
    without="crash",
    symptom=BY_ACCELERATOR,
)
def fused_adam_in_torch(call: Call) -> Any:
    """Use the operator if it was compiled at installation, else torch's multi-tensor operators."""
    return call.proceed() if is_installed("fused_adam") else TorchFusedAdam


@wrap(
    "deepspeed.ops.op_builder.fused_adam:FusedAdamBuilder.load",
    requires="deepspeed>=0.8.1,<0.14.1",
    devices="cpu",
    why=f"{_WHY_ADAM}; on ascend_adapt's CPU accelerator, its builder is that of the CUDA kernel",
    until="support for DeepSpeed 0.14.0 ends",
    without="crash",
    symptom=BY_ACCELERATOR,
)
def cuda_fused_adam_in_torch(call: Call) -> Any:
    """Use torch's multi-tensor operators."""
    return TorchFusedAdam


@wrap(
    "deepspeed.ops.op_builder.fused_adam:FusedAdamBuilder.load",
    requires="deepspeed>=0.8.1,<0.10.1",
    devices="npu",
    why="before DeepSpeed supported NPUs, FusedAdam only had a CUDA kernel",
    until="support for DeepSpeed 0.10.0 ends",
    without="crash",
    symptom=BY_ACCELERATOR,
)
def npu_fused_adam_in_torch(call: Call) -> Any:
    """Use torch's multi-tensor operators."""
    return TorchFusedAdam


@wrap(
    "deepspeed.accelerator.npu_accelerator:NPU_Accelerator.create_op_builder",
    requires="deepspeed>=0.10.1,<0.11.2",
    devices="npu",
    why="these releases support NPUs but have no FusedAdam for them: creating the optimizer 'Adam' raises",
    until="support for DeepSpeed 0.11.1 ends",
    without="crash",
    symptom=BY_ACCELERATOR,
)
def npu_fused_adam_builder(call: Call) -> Any:
    """Use torch's multi-tensor operators for FusedAdam; other builders are unchanged."""
    return TorchFusedAdamBuilder() if call["class_name"] == "FusedAdamBuilder" else call.proceed()


@wrap(
    "deepspeed.ops.op_builder.utils:UtilsBuilder.load",
    requires="deepspeed>=0.6,<0.9.5",
    devices=("cpu", "npu"),
    why="the engine compiles flatten and unflatten, which torch has in Python",
    until="support for DeepSpeed 0.9.4 ends",
    without="crash",
    symptom=Symptom("UtilsBuilder().load()", at="deepspeed.runtime.engine:DeepSpeedEngine"),
)
def flatten_in_torch(call: Call) -> Any:
    """Use torch's flatten and unflatten."""
    return TorchFlatten


@wrap(
    "deepspeed.ops.op_builder.npu.builder:NPUOpBuilder.installed_cann_path",
    requires="deepspeed>=0.12.4",
    devices="npu",
    why="without ASCEND_HOME_PATH, it raises KeyError instead of reporting that CANN is missing",
    until="DeepSpeed tests the variable with `and` instead of `or`",
    without="crash",
    symptom=Symptom("'ASCEND_HOME_PATH' in os.environ or os.path.exists(os.environ['ASCEND_HOME_PATH'])"),
)
def cann_path_or_none(call: Call) -> str | None:
    """Return the path of CANN, or None if it is not set."""
    path = os.environ.get("ASCEND_HOME_PATH")
    return path if path and os.path.exists(path) else None


def is_installed(operator: str) -> bool:
    """Return whether DeepSpeed was installed with this operator compiled."""
    from deepspeed.git_version_info import installed_ops

    return bool(installed_ops.get(operator))


class TorchFusedAdamBuilder:
    """Operator builder with the interface that FusedAdam expects."""

    def load(self, verbose: bool = True) -> type[TorchFusedAdam]:
        """Return the operator without building anything."""
        return TorchFusedAdam


class TorchFlatten:
    """Replacement of the engine's compiled utils module, with torch operators."""

    @staticmethod
    def flatten(tensors: Sequence[Any]) -> Any:
        """Return one flat tensor of all elements."""
        from torch._utils import _flatten_dense_tensors

        return _flatten_dense_tensors(tensors)

    @staticmethod
    def unflatten(flat: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return views of ``flat`` in the shapes of ``tensors``."""
        from torch._utils import _unflatten_dense_tensors

        return tuple(_unflatten_dense_tensors(flat, tensors))


class TorchFusedAdam:
    """Replacement of FusedAdam's compiled module, with torch's foreach operators."""

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
        """Adam step: update parameters and both moments in place, in fp32, as DeepSpeed's CPU kernel does.

        ``tensor_lists``: gradients, parameters, first and second moments, each a list of tensors of equal shapes.

        Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2.
        """
        import torch

        with torch.no_grad():
            for grads, params, firsts, seconds in _pieces(tensor_lists):
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


# Intermediate results use as much memory as a piece. ZeRO's flat partition of a 20B model is one tensor of 10 GiB.
_PIECE = 1 << 26


def _pieces(tensor_lists: Sequence[Sequence[Any]]) -> Iterator[tuple[list[Any], ...]]:
    """Yield the lists of small tensors, then one piece of a large contiguous tensor at a time."""
    large = {index for index, one in enumerate(tensor_lists[1]) if one.numel() > _PIECE}
    rows = list(zip(*tensor_lists, strict=True))
    large = {index for index in large if all(one.is_contiguous() for one in rows[index])}
    small = [row for index, row in enumerate(rows) if index not in large]
    if small:
        yield tuple(list(column) for column in zip(*small, strict=True))
    for index in sorted(large):
        for pieces in zip(*(one.view(-1).split(_PIECE) for one in rows[index]), strict=True):
            yield tuple([piece] for piece in pieces)
