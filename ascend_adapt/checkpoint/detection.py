"""Detection of a checkpoint's dialect from its files, and opening it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ascend_adapt.checkpoint.dialects import deepspeed_layers, glm, megatron, megatron_core, native
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.checkpoint.source import Source
from ascend_adapt.errors import CheckpointError
from ascend_adapt.native.config.model_config import Model

# In order: the first that recognises its files.
_OPENERS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Source]]] = {
    "native": (native.is_here, native.open_source),
    "hf": (hugging_face.is_here, hugging_face.open_source),
    "megatron-core": (megatron_core.is_here, megatron_core.open_source),
    "megatron": (megatron.is_here, megatron.open_source),
    "neox": (deepspeed_layers.is_here, deepspeed_layers.open_source),
}
DIALECTS = (*_OPENERS, "megatron-deepspeed")


def dialect_of(path: Path) -> str | None:
    """Return the dialect of the checkpoint in a folder, or None; for Megatron-DeepSpeed that is ``neox``."""
    found = next((name for name, (is_here, _) in _OPENERS.items() if is_here(path)), None)
    return "glm" if found is None and glm.is_here(path) else found


def open_checkpoint(
    path: Path, config: Sequence[Path] = (), expected: str | None = None, assumed: Model | None = None
) -> Source:
    """Return the checkpoint in a folder; ``config`` replaces GPT-NeoX's configuration files.

    ``expected`` is the dialect that it must have; ``assumed`` is its model if its files do not describe one.

    Raises:
        CheckpointError: there is no checkpoint, it cannot be read, or its dialect is another one.
    """
    found = dialect_of(path)
    if found == "glm" and assumed is None:
        raise CheckpointError(
            f"{path}: is a glm checkpoint, whose files do not describe its model — resize it with --to glm --tp N, or "
            "load it into a native run by --load-pretrained"
        )
    if found is None:
        step = "correct the path" if path.exists() else "it does not exist"
        raise CheckpointError(
            f"{path}: contains no readable checkpoint, expected one of {', '.join(DIALECTS)} — {step}"
        )
    if found == "glm" and assumed is not None:
        source = glm.open_source(path, assumed)
    elif found == "neox":
        source = deepspeed_layers.open_source(path, config, assumed)
    elif found == "megatron":
        source = megatron.open_source(path, assumed)
    else:
        source = _OPENERS[found][1](path)
    if expected not in (None, source.dialect):
        raise CheckpointError(
            f"{path}: is a {source.dialect} checkpoint, expected {expected} — pass --from {source.dialect}, or "
            "omit --from"
        )
    return source
