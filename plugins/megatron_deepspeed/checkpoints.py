"""Loads Megatron's checkpoints (without DeepSpeed) on torch 2.6 and newer, which by default only reads weights."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from ..checkpoint_allow_list import DEEPSPEED, allowed
from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

# Enum classes in the arguments that both forks save.
_ENUMS = tuple(
    f"{module}.{name}"
    for module in ("megatron.enums", "megatron.model.enums")
    for name in ("AttnMaskType", "AttnType", "LayerType", "ModelType", "PositionEmbeddingType")
)


@wrap(
    "megatron.checkpointing:load_checkpoint",
    name="full_checkpoints",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    requires="torch>=2.6",
    why="torch 2.6 only reads weights by default, and refuses the saved arguments and RNG states; bigscience's "
    'prints "could not load the checkpoint" and exits with code 0',
    until="the code bases allow the classes that they save",
    without="crash",
    symptom=Symptom("torch.load(checkpoint_name, map_location='cpu')", at="megatron.checkpointing"),
)
def load_checkpoint(call: Call) -> Any:
    """Load a checkpoint; only allow the classes that Megatron saves."""
    with allowed(*DEEPSPEED, *_ENUMS):
        return call.proceed()
