"""Resume a run from its latest valid checkpoint, on any mesh."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ascend_adapt import regular_files
from ascend_adapt.checkpoint.detection import dialect_of
from ascend_adapt.checkpoint.dialects.megatron import untracked_folder
from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.errors import TrainingError, one_line, ran_out
from ascend_adapt.native.checkpoint.config_changes import (
    changes_of_model,
    changes_of_optimizer,
    changes_of_order,
    resumed_schedule,
    scheduled_by,
)
from ascend_adapt.native.checkpoint.folder import LATEST, PROGRESS, SUMS, CheckpointFolder, damage, recorded_sums
from ascend_adapt.native.checkpoint.foreign_formats import content, foreign_format
from ascend_adapt.native.checkpoint.foreign_weights import load_foreign_weights
from ascend_adapt.native.checkpoint.reader import CheckpointReader
from ascend_adapt.native.checkpoint.state import TrainState, generators, model_state, optimizer_state, set_generators
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.parameters import local
from ascend_adapt.native.step.trainer import Trainer, seed_dropout
from ascend_adapt.whole_numbers import whole_number

FRESH = "starting from random weights:"
AXES = ("tensor", "pipeline", "data")


def load(trainer: Trainer, token_files: Mapping[str, str] | None = None) -> tuple[TrainState, list[str]]:
    """Load the checkpoint that the configuration names; return the progress of the run, and log messages.

    A run starts from random weights only without ``load``, or if ``load`` is also ``save`` and holds nothing but logs
    of native runs. ``token_files`` are the identities from ``token_files.identities``; they are compared with the
    checkpoint's. Every rank must call this function.

    Raises:
        TrainingError: there is nothing to load, the checkpoint belongs to another trainer or model, or none is valid.
    """
    config, group = trainer.config.checkpoint, HostGroup(trainer.mesh)
    conflict, warnings = group.on_first(lambda: _other_trainers_in_save(config))
    if conflict is not None:
        raise TrainingError(conflict)
    if config.load is None:
        return TrainState(), [f"{FRESH} --load was not given", *warnings]
    folder = CheckpointFolder(Path(config.load))
    if group.on_first(lambda: _has_foreign_weights(folder, config)):
        return TrainState(), [*warnings, *load_foreign_weights(trainer, folder.path, group)]
    candidates, doubts = group.on_first(lambda: _candidates(folder))
    if not candidates:
        outputs = (trainer.config.logging.tensorboard, trainer.config.data.cache)
        refusal = group.on_first(lambda: _why_not_random(config, outputs))
        if refusal is not None:
            raise TrainingError(refusal)
        return TrainState(), [f"{FRESH} {folder.path} has no checkpoint yet, and the run will be saved there"]
    source, passed_over = _first_valid(candidates, group)
    progress, messages = _load_from(trainer, source, token_files or {}, group)
    return progress, [*warnings, *doubts, *passed_over, *messages]


def _other_trainers_in_save(config: Checkpoint) -> tuple[str | None, list[str]]:
    """Return why a run must not save into its folder (or None), and warnings. The folder it loads is not checked."""
    if config.save is None or _is_saved_there(config):
        return None, []
    folder = CheckpointFolder(Path(config.save))
    found = None if folder.saved() else foreign_format(folder.path)
    if found is None:
        return None, []
    if folder.latest() is None:
        return None, [f"warning: {folder.path} holds {found}; this run does not load it"]
    return (
        f"{folder.path}: holds {found}, expected a folder without another trainer's {LATEST}, because a save would "
        "replace that file — choose another --save"
    ), []


def _has_foreign_weights(folder: CheckpointFolder, config: Checkpoint) -> bool:
    """Return whether the folder to load holds another trainer's checkpoint of which only the weights are requested."""
    wants_weights = config.finetune or not config.load_optimizer
    if not wants_weights or _is_saved_there(config) or folder.saved():
        return False
    found = dialect_of(folder.path)
    return found != "native" and (found is not None or untracked_folder(folder.path) is not None)


def _is_saved_there(config: Checkpoint) -> bool:
    """Return whether the run saves into the folder that it loads from."""
    folders = (config.load, config.save)
    return None not in folders and len({Path(one).resolve() for one in folders if one}) == 1


def _why_not_random(config: Checkpoint, outputs: Collection[str | None]) -> str | None:
    """Return why a run whose ``load`` has no checkpoint must not start from random weights, or None."""
    path, is_saved_there = Path(config.load or ""), _is_saved_there(config)
    found = content(path, outputs)
    if found is None and is_saved_there and not config.finetune:
        return None
    if found is None:
        found = "has no checkpoint" if path.exists() else "does not exist"
        step = "correct --load" if config.finetune else "correct --load, or remove it to start from random weights"
    elif is_saved_there:
        step = "pass another folder to --save and --load"
    else:
        step = "pass the folder of a native run to --load, or load another trainer's weights with --finetune"
    return f"{path}: {found}, expected a checkpoint of the native trainer — {step}"


def _candidates(folder: CheckpointFolder) -> tuple[list[Path], list[str]]:
    """Return the checkpoints to try, the latest first, and warnings.

    Without a valid tracker file, the candidates are all native checkpoints in the folder.
    """
    latest, saved = folder.latest(), sorted(folder.saved(), reverse=True)
    if not saved and foreign_format(folder.path) is not None:
        return [], []
    if (number := whole_number(latest)) is not None:
        return [folder.of(number), *(folder.of(older) for older in saved if older < number)], []
    if latest and (folder.path / latest).is_dir():
        return [folder.path / latest], []
    native = [folder.of(number) for number in saved]
    if latest is None or not native:
        return native, []
    return native, [
        f"warning: {folder.path / LATEST} names no checkpoint ({latest[:40]!r}); trying the newest checkpoint"
    ]


def _first_valid(candidates: Sequence[Path], group: HostGroup) -> tuple[Path, list[str]]:
    """Return the first checkpoint whose files match their checksums, and a warning for each damaged one before it."""
    warnings: list[str] = []
    for source in candidates:
        wrong = _wrong_with(source, group)
        if wrong is None:
            return source, warnings
        warnings.append(f"warning: {source} is damaged ({wrong}); trying the previous checkpoint")
    raise TrainingError(
        f"{candidates[0].parent}: no valid checkpoint, expected one ({'; '.join(warnings)}) — restore a checkpoint, or "
        "start in another folder"
    )


def _wrong_with(source: Path, group: HostGroup) -> str | None:
    """Return a description of a checkpoint's damage, or None; each rank checks a share of its files."""
    if group.on_first(lambda: _is_foreign(source)):
        raise TrainingError(
            f"{source}: has neither {PROGRESS} nor {SUMS}, expected a checkpoint of the native trainer — correct "
            f"{LATEST} or --load"
        )
    recorded = group.together(lambda: _recorded(source))
    sums, wrong = recorded[0]
    if wrong is not None:
        return wrong
    for rank, (theirs, why) in enumerate(recorded):
        # Hosts without a shared folder may each have a checkpoint of that name.
        if theirs != sums:
            return f"rank {rank} sees a different checkpoint: {why or f'its {SUMS} differs'}"
    mine = sorted(sums)[group.rank :: group.size]
    return next((found for found in group.together(lambda: damage(source, sums, mine)) if found is not None), None)


def _is_foreign(source: Path) -> bool:
    return source.exists() and not (source / PROGRESS).exists() and not (source / SUMS).exists()


def _recorded(source: Path) -> tuple[dict[str, str], str | None]:
    try:
        return recorded_sums(source), None
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and ran_out(error):
            raise
        return {}, str(error)


def read_progress(source: Path) -> dict[str, Any]:
    """Return the progress of the run that saved a checkpoint: iteration, samples, configuration, token files.

    Raises:
        TrainingError: the file cannot be read or is not a JSON object.
    """
    try:
        progress = json.loads(regular_files.read_text(source / PROGRESS))
        if not isinstance(progress, dict):
            raise ValueError(f"a JSON {type(progress).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise TrainingError(
            f"{source / PROGRESS}: cannot be read as JSON ({one_line(error)}), expected the progress of a native run — "
            "load another checkpoint"
        ) from error
    return progress


def _load_from(
    trainer: Trainer, source: Path, token_files: Mapping[str, str], group: HostGroup
) -> tuple[TrainState, list[str]]:
    config, mesh = trainer.config.checkpoint, trainer.mesh
    then = read_progress(source)
    resumes = not config.finetune
    if "optimizer" not in then["config"]:
        if resumes and config.load_optimizer:
            raise TrainingError(
                f"{source}: holds weights only, expected optimizer states to resume — load it at iteration 0 with "
                "--finetune"
            )
        resumes = False
    schedule_lines: list[str] = []
    if resumes:
        resumed, schedule_lines = resumed_schedule(then["config"], trainer.config, source)
        trainer.reconfigure(resumed)
    state = model_state(trainer)
    if resumes and config.load_optimizer:
        state |= optimizer_state(trainer)
    saved = CheckpointReader(source).read_metadata().state_dict_metadata
    _check(state, saved, source)
    if resumes:
        _check_all_loaded(state, saved, source, group)
    own = generators(mesh)
    takes_generators = (
        resumes
        and config.load_rng
        and _axes(then["config"]) == _axes(to_dict(trainer.config))
        and set(own) <= set(saved)
    )
    if takes_generators:
        state |= own
    dcp.load(state, storage_reader=CheckpointReader(source), no_dist=not dist.is_initialized())
    _bring_to_host(state, trainer)
    if not resumes:
        return TrainState(), [
            f"weights of {source}, from iteration 0",
            *changes_of_model(then["config"], trainer.config),
        ]
    scheduled, more = scheduled_by(then, trainer.config)
    more = [*schedule_lines, *changes_of_optimizer(then["config"], trainer.config), *more]
    progress = TrainState(then["iteration"], then["consumed_samples"], scheduled)
    messages = [f"resuming from {source}, iteration {progress.iteration}"]
    if takes_generators:
        set_generators(mesh, own)
    else:
        seed_dropout(trainer.config.seed, mesh, progress.iteration)
        if trainer.config.model.hidden_dropout or trainer.config.model.attention_dropout:
            messages.append(
                "dropout masks differ from an uninterrupted run: the parallel layout differs, or no generator state "
                "was loaded"
            )
    if config.load_optimizer:
        trainer.scaler.load_state_dict(then["loss_scale"])
    if trainer.scaler.moves and not (config.load_optimizer and then["loss_scale"]):
        messages.append(f"the loss scale starts at {trainer.scaler.scale:g}, because no loss scale was loaded")
    messages += [*more, *changes_of_model(then["config"], trainer.config)]
    messages += changes_of_order(then, trainer.config, token_files)
    return progress, messages


def _axes(config: dict[str, Any]) -> list[int]:
    return [config["parallel"][axis] for axis in AXES]


def _check(state: dict[str, torch.Tensor], saved: dict[str, Any], source: Path) -> None:
    missing = sorted(set(state) - set(saved))
    if missing:
        what = "optimizer states" if missing[0].startswith("optimizer.") else "parameters"
        raise TrainingError(
            f"{source}: lacks {len(missing)} {what}, such as {missing[0]}, expected all of them — load only its "
            "weights with --finetune, or configure the model that was saved"
        )
    for name, tensor in state.items():
        shape = tuple(saved[name].size)
        if shape != tuple(tensor.shape):
            raise TrainingError(
                f"{source}: {name} is {list(shape)}, expected {list(tensor.shape)} — configure the model that was "
                "saved; the padded vocabulary may differ with the tensor parallel size"
            )


def _check_all_loaded(state: dict[str, torch.Tensor], saved: dict[str, Any], source: Path, group: HostGroup) -> None:
    """Check that every saved parameter is part of the model on some rank."""
    here = [name for name in state if name.startswith("model.")]
    left = {name for name in saved if name.startswith("model.")}.difference(*group.together(lambda: here))
    if left:
        raise TrainingError(
            f"{source}: has {min(left)} and {len(left) - 1} other parameters that this model does not have, expected "
            "none — omit them with --finetune, or configure the model that was saved"
        )


def _bring_to_host(state: dict[str, torch.Tensor], trainer: Trainer) -> None:
    """Copy offloaded tensors back to host memory: a DTensor is loaded onto the device of its mesh."""
    targets = {f"model.{one.name}": one.local for one in trainer.parameters}
    for one, states in zip(trainer.optimizer.parameters, trainer.optimizer.states, strict=True):
        targets |= {f"optimizer.{one.name}.{name}": tensor for name, tensor in states.items()}
    for name, target in targets.items():
        if name in state and local(state[name]).device != target.device:
            target.copy_(local(state[name]))
