"""Load the weights of another trainer's checkpoint into this run at iteration 0."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from ascend_adapt.checkpoint.canonical import BLOCK_POSITIONS, POSITIONS
from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.vocabulary_rows import is_vocabulary, with_rows
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.checkpoint.config_changes import changes_of_model
from ascend_adapt.native.model.initialisation import fill, generator, part
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.step.trainer import Trainer


def load_foreign_weights(trainer: Trainer, path: Path, group: HostGroup) -> list[str]:
    """Load the weights of the checkpoint in ``path``, one parameter in memory at a time; return log messages.

    Every rank must call this function; each reads its shard of every parameter.

    Raises:
        TrainingError: the checkpoint cannot be read, or belongs to another model; no parameter has been changed.
    """
    model = trainer.config.model
    sources = group.together(lambda: _described(open_checkpoint(path, Given(assumed=model))))
    source = open_checkpoint(path, Given(assumed=model))
    if any(one != sources[0] for one in sources):
        raise TrainingError(f"{path}: ranks see different checkpoints, expected one — share the folder among all hosts")
    _check(trainer, source, group)
    group.together(lambda: _fill(trainer, source))
    then = dataclasses.replace(source.model, vocab_size=model.vocab_size, padded_vocab_size=model.padded_vocab_size)
    rows = (source.model.padded_vocab_size, model.padded_vocab_size)
    resized = [f"vocabulary: {rows[0]} -> {rows[1]} rows, for {model.vocab_size} ids"] if rows[0] != rows[1] else []
    return [
        f"weights of {source.path}, {source.dialect}, from iteration 0",
        *source.notes,
        *resized,
        *changes_of_model({"model": dataclasses.asdict(then)}, trainer.config),
    ]


def _described(source: Source) -> tuple[str, str, dict[str, object]]:
    return source.dialect, str(source.path), dataclasses.asdict(source.model)


def _check(trainer: Trainer, source: Source, group: HostGroup) -> None:
    """Check that names and shapes match those of the run; only the number of vocabulary rows may differ."""
    ranks, model = trainer.mesh.parallel.tensor, trainer.config.model
    shapes = {one.name: one.shape for one in source.parameters()}
    here = {one.name: one.whole_shape(ranks) for one in trainer.parameters}
    needed = {name: shape for each in group.together(lambda: here) for name, shape in each.items()}
    problems = [f"has no {name}" for name in sorted(needed.keys() - shapes.keys())]
    problems += [f"has {name}, which this model lacks" for name in sorted(shapes.keys() - needed.keys())]
    for name in sorted(needed.keys() & shapes.keys()):
        if is_vocabulary(name):
            if shapes[name][0] < model.vocab_size:
                problems.append(
                    f"has {shapes[name][0]} rows of {name}, expected at least {model.vocab_size}, one per id"
                )
        elif shapes[name] != needed[name] and not _grows(source, name, needed[name]):
            problems.append(f"{name} is {list(shapes[name])}, expected {list(needed[name])}")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise TrainingError(
            f"{source.path}: {'; '.join(problems[:3])}{more} — configure the model that was saved "
            f"(`ascend-adapt inspect {source.path}` shows it)"
        )


def _grows(source: Source, name: str, needed: tuple[int, ...]) -> bool:
    """Return whether a position table of GLM gets additional rows, which are initialised as in a new model.

    Source: THUDM/GLM@4f61ed72 train_utils.py (load_pretrained).
    """
    is_table = source.model.positions == "block" and name in (POSITIONS, BLOCK_POSITIONS)
    return is_table and source.model.max_positions < needed[0]


@torch.no_grad()
def _fill(trainer: Trainer, source: Source) -> None:
    model = trainer.config.model
    for one in trainer.parameters:
        whole = source.read(one.name)
        if is_vocabulary(one.name):
            whole = with_rows(whole, model.padded_vocab_size, model.vocab_size)
        if _grows(source, one.name, needed := one.whole_shape(trainer.mesh.parallel.tensor)):
            read, whole = whole, torch.empty(needed)
            fill(whole, one.layout.init, generator(trainer.config.seed, one.name))
            whole[: len(read)] = read
        one.local.copy_(part(whole, one, trainer.mesh))
