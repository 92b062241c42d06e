"""GLM's checkpoints, on a torch that reads weights only unless it is told otherwise."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, wrap

from ..checkpoint_allow_list import DEEPSPEED, allowed

# What its own FP16_Optimizer saves: fp16/fp16.py, GLM@4f61ed72.
_LOSS_SCALERS = ("fp16.loss_scaler.LossScaler", "fp16.loss_scaler.DynamicLossScaler")


def _with_its_classes(target: str, name: str) -> Patch:
    @wrap(
        target,
        name=name,
        host="glm",
        requires="torch>=2.6",
        why="torch 2.6 reads weights only by default, and refuses the random states that GLM saves with them",
        until="GLM allows what it saves, or saves weights alone",
        without="crash",
        symptom=Symptom("torch.load(checkpoint_name, map_location='cpu')"),
    )
    def load(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read a checkpoint with the classes that GLM saves, and no others."""
        with allowed(*DEEPSPEED, *_LOSS_SCALERS):
            return wrapped(*args, **kwargs)

    return load


WEIGHTS_AND_STATE = (
    _with_its_classes("train_utils:load_pretrained", "whole_pretrained_checkpoints"),
    _with_its_classes("utils:load_checkpoint", "whole_checkpoints"),
)
