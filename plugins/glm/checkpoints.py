"""Loads GLM's checkpoints on torch 2.6 and newer, which by default only reads weights."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap

from ..checkpoint_allow_list import DEEPSPEED, allowed

# GLM's FP16_Optimizer saves these classes: fp16/fp16.py, GLM@4f61ed72.
_LOSS_SCALERS = ("fp16.loss_scaler.LossScaler", "fp16.loss_scaler.DynamicLossScaler")


def _with_its_classes(target: str, name: str) -> Patch:
    @wrap(
        target,
        name=name,
        host="glm",
        requires="torch>=2.6",
        why="torch 2.6 only reads weights by default, and refuses the RNG states in GLM checkpoints",
        until="GLM allows the classes that it saves, or saves weights only",
        without="crash",
        symptom=Symptom("torch.load(checkpoint_name, map_location='cpu')"),
    )
    def load(call: Call) -> Any:
        """Load a checkpoint; only allow the classes that GLM saves."""
        with allowed(*DEEPSPEED, *_LOSS_SCALERS):
            return call.proceed()

    return load


WEIGHTS_AND_STATE = (
    _with_its_classes("train_utils:load_pretrained", "full_pretrained_checkpoints"),
    _with_its_classes("utils:load_checkpoint", "full_checkpoints"),
)


@wrap(
    "torch:load",
    name="tool_checkpoints",
    host="glm",
    requires="torch>=2.6",
    why="change_mp.py and other scripts of GLM call torch.load themselves, which refuses the RNG states since torch "
    "2.6; change_mp.py then leaves a folder whose file `latest` refers to missing weights",
    until="GLM allows the classes that it saves",
    without="crash",
    symptom=Symptom(reason="the fault is in scripts rather than in modules of GLM"),
)
def load_in_a_script(call: Call) -> Any:
    """Load a checkpoint file; only allow the classes that GLM saves."""
    with allowed(*DEEPSPEED, *_LOSS_SCALERS):
        return call.proceed()
