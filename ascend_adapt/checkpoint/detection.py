"""Detection of a checkpoint's dialect from its files, and opening it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ascend_adapt.checkpoint.dialects import deepspeed_layers, deepspeed_model, glm, megatron, megatron_core, native
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.errors import CheckpointError, ConfigError, system_error, type_and_message


class Dialect(Protocol):
    """A dialect: a module that detects and opens checkpoints."""

    def is_here(self, path: Path, /) -> bool:
        """Return whether a folder holds such a checkpoint."""

    def open_source(self, path: Path, given: Given, /) -> Source:
        """Open the checkpoint in a folder; raises CheckpointError if it cannot be read."""


# Ordered: the first dialect that detects its files is used. Unlike dialects of the native trainer, these are not entry
# points: names and layouts of the canonical state change with the trainer, and a reader for another version would give
# wrong weights.
_DIALECTS: dict[str, Dialect] = {
    "native": native,
    "hf": hugging_face,
    "megatron-core": megatron_core,
    "megatron": megatron,
    "neox": deepspeed_layers,
    "deepspeed": deepspeed_model,
    "glm": glm,
}
DIALECTS = (*_DIALECTS, "megatron-deepspeed")
_WITH_MASTER_WEIGHTS = ("neox", "deepspeed")


def dialect_of(path: Path) -> str | None:
    """Return the dialect of the checkpoint in a folder, or None; it is ``neox`` for Megatron-DeepSpeed."""
    with reading(path):
        return next((name for name, dialect in _DIALECTS.items() if dialect.is_here(path)), None)


def open_checkpoint(path: Path, given: Given | None = None, expected: str | None = None) -> Source:
    """Open the checkpoint in a folder; ``expected`` is the dialect that it must have.

    Raises:
        CheckpointError: the folder has no checkpoint, it cannot be read, or it has another dialect.
    """
    with reading(path):
        if (special := _special_file(path)) is not None:
            raise CheckpointError(f"{special}: is not a regular file, expected the file of a checkpoint — remove it")
        return _open(path, given or Given(), expected)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context for reading a checkpoint, whose files are untrusted input.

    Raises:
        CheckpointError: replaces any error that a wrong value in a file raises, because such errors are not documented.
    """
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({type_and_message(error)}), expected a valid checkpoint — restore its files, or "
            "choose another checkpoint"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: {system_error(error)}, expected a file of a checkpoint that this user can read "
            "— restore it, or change its permissions"
        ) from error


def _open(path: Path, given: Given, expected: str | None) -> Source:
    found = dialect_of(path)
    if found is None:
        raise CheckpointError(_why_none(path))
    if given.master_weights and found not in _WITH_MASTER_WEIGHTS:
        raise CheckpointError(
            f"--master-weights: {path} is a {found} checkpoint, expected one of DeepSpeed with ZeRO shards — omit it"
        )
    source = _DIALECTS[found].open_source(path, given)
    if expected not in (None, source.dialect):
        raise CheckpointError(
            f"{path}: is a {source.dialect} checkpoint, expected {expected} — pass --from {source.dialect}, or "
            "omit --from"
        )
    if not source.dtype.is_floating_point:
        raise CheckpointError(
            f"{path}: its weights are {str(source.dtype).removeprefix('torch.')}, expected fp32, fp16 or bf16 — choose "
            "a checkpoint that is not quantised"
        )
    return source


def _special_file(path: Path) -> Path | None:
    """Return a pipe, socket or device in a checkpoint, or None; reading one could block forever."""
    return next((one for one in path.rglob("*") if one.exists() and not (one.is_file() or one.is_dir())), None)


def _why_none(path: Path) -> str:
    """Return an error message for a folder without a readable checkpoint, with the next step."""
    if not path.exists():
        return f"{path}: does not exist, expected the folder of a checkpoint — correct the path"
    if (untracked := megatron.untracked_folder(path)) is not None:
        return (
            f"{path}: has no {megatron.LATEST} that names one of its checkpoints, expected the file to contain an "
            f"iteration — pass --input {untracked}"
        )
    return (
        f"{path}: contains no readable checkpoint, expected one of {', '.join(DIALECTS)} — correct the path, or copy "
        "all of its files"
    )
