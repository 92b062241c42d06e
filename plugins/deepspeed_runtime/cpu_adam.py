"""DeepSpeedCPUAdam, the optimizer of ZeRO-Offload, with torch operators instead of a compiled extension."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ascend_adapt import Call, wrap

from .jit_builds import BY_ACCELERATOR, UNTIL_SHIPPED, TorchFusedAdam, is_installed

_WHY = "ZeRO-Offload's optimizer compiles its operator cpu_adam for minutes before the first step, one rank at a time"


@wrap(
    "deepspeed.ops.op_builder.cpu.cpu_adam:CPUAdamBuilder.load",
    requires="deepspeed>=0.14.1",
    devices="cpu",
    why=_WHY,
    until=UNTIL_SHIPPED,
    without="slower",
    symptom=BY_ACCELERATOR,
)
def cpu_adam_in_torch(call: Call) -> Any:
    """Use the operator if it was compiled at installation, or else torch's multi-tensor operators."""
    return _loaded(call)


@wrap(
    "deepspeed.ops.op_builder.cpu_adam:CPUAdamBuilder.load",
    requires="deepspeed>=0.8.1,<0.14.1",
    devices="cpu",
    why=f"{_WHY}; on ascend_adapt's CPU accelerator, its builder also looks for CUDA",
    until="support for DeepSpeed 0.14.0 ends",
    without="slower",
    symptom=BY_ACCELERATOR,
)
def old_cpu_adam_in_torch(call: Call) -> Any:
    """Use the operator if it was compiled at installation, or else torch's multi-tensor operators."""
    return _loaded(call)


@wrap(
    "deepspeed.ops.op_builder.npu.cpu_adam:CPUAdamBuilder.load",
    requires="deepspeed>=0.12.4",
    devices="npu",
    why=f"{_WHY}; on an emulated NPU, speed does not matter, and CANN's headers, which the operator needs, are missing",
    until=UNTIL_SHIPPED,
    without="crash",
    symptom=BY_ACCELERATOR,
)
def emulated_cpu_adam_in_torch(call: Call) -> Any:
    """Use torch's multi-tensor operators on an emulated NPU; a real NPU compiles the faster operator."""
    return _loaded(call) if os.environ.get("ASCEND_ADAPT_EMULATED") else call.proceed()


def _loaded(call: Call) -> Any:
    return call.proceed() if is_installed("cpu_adam") else TorchCPUAdam(call.proceed)


class TorchCPUAdam:
    """DeepSpeedCPUAdam's compiled module, with torch's foreach operators; other operators are compiled on use."""

    def __init__(self, compiled: Callable[[], Any]) -> None:
        self._compiled = compiled
        self._is_adamw: dict[int, bool] = {}

    def __getattr__(self, name: str) -> Any:
        """Return an operator of ZenFlow or SuperOffload from the compiled module."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._compiled(), name)

    def create_adam(
        self,
        optimizer: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        adamw_mode: bool,
        should_log: bool,
    ) -> int:
        """Create an optimizer; its other settings are passed to each step."""
        self._is_adamw[optimizer] = bool(adamw_mode)
        return 0

    def destroy_adam(self, optimizer: int) -> int:
        """Remove an optimizer."""
        self._is_adamw.pop(optimizer, None)
        return 0

    def adam_update(
        self,
        optimizer: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        parameter: Any,
        gradient: Any,
        first: Any,
        second: Any,
    ) -> int:
        """Adam or AdamW step on one flat parameter: update it and both moments in place, in fp32.

        Source of the order of operations: DeepSpeed 0.19.8 csrc/adam/cpu_adam_impl.cpp, Step_1.
        """
        TorchFusedAdam.multi_tensor_adam(
            0,
            None,
            [[gradient], [parameter], [first], [second]],
            lr,
            beta1,
            beta2,
            eps,
            step,
            int(self._is_adamw[optimizer]),
            int(bias_correction),
            weight_decay,
        )
        return 0

    def adam_update_copy(self, *arguments: Any) -> int:
        """Adam step that also copies the parameter to the device (last argument); used by DeepSpeed before 0.14.3."""
        *of_step, copy = arguments
        self.adam_update(*of_step)
        copy.copy_(of_step[8])
        return 0
