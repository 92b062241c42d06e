"""Checkpoints of Megatron's own, without DeepSpeed, on a torch that reads weights only unless it is told otherwise."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap

from ..checkpoint_allow_list import DEEPSPEED, allowed
from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

# Values of the arguments that both forks save.
_ENUMS = tuple(
    f"{module}.{name}"
    for module in ("megatron.enums", "megatron.model.enums")
    for name in ("AttnMaskType", "AttnType", "LayerType", "ModelType", "PositionEmbeddingType")
)


@wrap(
    "megatron.checkpointing:load_checkpoint",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    requires="torch>=2.6",
    why="torch 2.6 reads weights only by default, and refuses the arguments and random states beside them; bigscience "
    'says "could not load the checkpoint" and ends with exit code 0',
    until="the code bases allow what they save",
    without="crash",
    symptom=Symptom("torch.load(checkpoint_name, map_location='cpu')", at="megatron.checkpointing"),
)
def whole_checkpoints(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a checkpoint with the classes that Megatron saves, and no others."""
    with allowed(*DEEPSPEED, *_ENUMS):
        return wrapped(*args, **kwargs)
