"""Resizing of GLM checkpoints: write any model-parallel size from a GLM or native checkpoint, verified bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import glm
from ascend_adapt.convert.output_folder import check_sums, publish, unfinished
from ascend_adapt.errors import CheckpointError


def resize_glm(path: Path, output: Path, ranks: int, progress: Callable[[int, int], None]) -> tuple[Path, int, int]:
    """Write the checkpoint for ``ranks`` ranks; return its folder, the previous ranks and the parameter count.

    Raises:
        CheckpointError: a checkpoint cannot be read or written, or the output differs from the source.
    """
    source, before, total = _opened(path)
    written = 0

    def done(amount: int) -> None:
        nonlocal written
        written += amount
        progress(written, total)

    with unfinished(output) as folder:
        glm.write(source, folder, ranks, done)
        result = glm.open_glm(folder)
        wrong = [name for name in source.names if not torch.equal(source.read(name), result.read(name))]
        if wrong:
            raise CheckpointError(
                f"{output}: {wrong[0]} differs from the source, expected equal bits — report this bug with the command"
            )
        publish(folder, output, folder)
    return output, before, len(source.names)


def _opened(path: Path) -> tuple[glm.GlmCheckpoint | glm.AsGlm, int, int]:
    """Return a checkpoint, its number of ranks, and the size of its parameters in bytes."""
    if glm.is_here(path):
        found = glm.open_glm(path)
        check_sums(found.folder)
        bytes_of_first = sum(tensor.nbytes for tensor in found.files[0]["module"].values())
        return found, len(found.files), bytes_of_first * len(found.files)
    source = open_checkpoint(path)
    check_sums(source.path)
    elements = sum(torch.Size(one.shape).numel() for one in source.parameters())
    return glm.AsGlm.of(source), 1, elements * source.dtype.itemsize
