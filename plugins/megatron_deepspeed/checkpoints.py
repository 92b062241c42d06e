"""Checkpoints of Megatron's own, without DeepSpeed, on a torch that reads weights only unless it is told otherwise."""

from __future__ import annotations

import os
import warnings
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

# What torch.load asks where its caller does not say weights_only.
WHOLE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
ONLY_WEIGHTS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@wrap(
    "megatron.checkpointing:load_checkpoint",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    requires="torch>=2.6",
    why="torch 2.6 reads weights only by default, and refuses the arguments and random states beside them; bigscience "
    'says "could not load the checkpoint" and ends with exit code 0',
    until="the code bases say weights_only=False",
    without="crash",
    symptom=Symptom("torch.load(checkpoint_name, map_location='cpu')", at="megatron.checkpointing"),
)
def whole_checkpoints(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a checkpoint as torch did before 2.6, unless the user asks for weights only: load only what you trust."""
    if ONLY_WEIGHTS in os.environ or WHOLE in os.environ:
        return wrapped(*args, **kwargs)
    os.environ[WHOLE] = "1"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=f".*{WHOLE}")
            return wrapped(*args, **kwargs)
    finally:
        del os.environ[WHOLE]
