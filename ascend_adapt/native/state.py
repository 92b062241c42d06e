"""A run on disk: saved by every rank in its own part, read by any mesh, through torch.distributed.checkpoint.

    SAVE/latest_checkpointed_iteration.txt      the number of the last whole checkpoint
    SAVE/iter_0000100/                          parameters and optimizer states under their global names
    SAVE/iter_0000100/progress.json             where the run was, as JSON: nothing in it is code

What FSDP and tensor parallelism leave on a rank is told as a piece of the whole: rows (or columns) over tensor ranks,
the rows of each such piece over data ranks.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_adapt.errors import TrainingError
from ascend_adapt.native import device as devices
from ascend_adapt.native.config import TrainConfig
from ascend_adapt.native.config_file import to_dict
from ascend_adapt.native.mesh import Mesh
from ascend_adapt.native.parameters import Placed, local
from ascend_adapt.native.trainer import Trainer

LATEST = "latest_checkpointed_iteration.txt"
PROGRESS = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where a run is. ``scheduled`` counts the samples or iterations that advanced the learning rate's schedule."""

    iteration: int = 0
    consumed_samples: int = 0
    scheduled: int = 0


def whole(tensor: torch.Tensor, one: Placed, mesh: Mesh) -> torch.Tensor:
    """Return this rank's numbers of a parameter, or of a state that lies as it does, as a piece of the whole."""
    if mesh.device_mesh is None:
        return tensor
    shape = torch.Size(one.whole_shape(mesh.parallel.tensor))
    cut = Replicate() if one.layout.cut is None else Shard(one.layout.cut)
    piece: torch.Tensor = DTensor.from_local(
        tensor,
        mesh.device_mesh["tensor", "replicate", "shard"],
        [cut, Replicate(), Shard(0)],
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )
    return piece


def model_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return this rank's parameters by ``model.NAME``; they are those of the model, not copies."""
    return {f"model.{one.name}": whole(one.local, one, trainer.mesh) for one in trainer.parameters}


def optimizer_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the optimizer's states by ``optimizer.NAME.STATE``, and each parameter's counter."""
    optimizer, found = trainer.optimizer, {}
    for one, state, step in zip(optimizer.parameters, optimizer.states, optimizer.steps, strict=True):
        for name, tensor in state.items():
            found[f"optimizer.{one.name}.{name}"] = whole(tensor, one, trainer.mesh)
        found[f"optimizer.{one.name}.step"] = step
    return found


def save(trainer: Trainer, progress: Progress, folder: Path) -> Path:
    """Write a checkpoint, and only when it is whole name it the latest; every rank must call it. Return its folder."""
    config, mesh = trainer.config.checkpoint, trainer.mesh
    target = folder / f"iter_{progress.iteration:07d}"
    state = model_state(trainer)
    if config.save_optimizer:
        state |= optimizer_state(trainer)
    if config.save_rng:
        state |= _generators(mesh)
    dcp.save(state, checkpoint_id=target, no_dist=not dist.is_initialized())
    if mesh.rank == 0:
        told = {**asdict(progress), "loss_scale": trainer.scaler.state_dict(), "world_size": mesh.parallel.world_size}
        _write(target / PROGRESS, json.dumps({**told, "config": to_dict(trainer.config)}, indent=1))
        _write(folder / LATEST, str(progress.iteration))
        _forget_older(folder, config.keep_last)
    _wait(mesh)
    return target


def load(trainer: Trainer) -> tuple[Progress, str]:
    """Take up the run that the configuration names; return where it is, and in words what was done.

    An empty ``load`` that is also ``save`` is a fresh start, as is none.

    Raises:
        TrainingError: there is nothing to load elsewhere, or it is not of this model, or not whole.
    """
    config = trainer.config.checkpoint
    if config.load is None:
        return Progress(), "starting from random weights: no checkpoint was named"
    folder = Path(config.load)
    latest = folder / LATEST
    if not latest.exists():
        if not config.finetune and config.save is not None and folder.absolute() == Path(config.save).absolute():
            return Progress(), f"starting from random weights: {folder} is empty, and the run will be saved there"
        raise TrainingError(
            f"{folder}: no {LATEST}, expected a checkpoint of the native trainer to load — correct --load, or leave it "
            "out to start from random weights"
        )
    source = _latest(folder)
    told = json.loads((source / PROGRESS).read_text())
    state = model_state(trainer)
    resumes = not config.finetune
    if resumes and config.load_optimizer:
        state |= optimizer_state(trainer)
    saved = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    _check(state, saved, source)
    generators = _generators(trainer.mesh)
    same_ranks = told["world_size"] == trainer.mesh.parallel.world_size
    takes_generators = resumes and config.load_rng and same_ranks and set(generators) <= set(saved)
    if takes_generators:
        state |= generators
    dcp.load(state, checkpoint_id=source, no_dist=not dist.is_initialized())
    _bring_to_host(state, trainer)
    if takes_generators:
        _set_generators(trainer.mesh, generators)
    if not resumes:
        return Progress(), f"weights of {source}, from iteration 0"
    if config.load_optimizer:
        trainer.scaler.load_state_dict(told["loss_scale"])
    progress = Progress(told["iteration"], told["consumed_samples"], told["scheduled"])
    return progress, f"going on from {source}, iteration {progress.iteration}"


def _latest(folder: Path) -> Path:
    """Return the folder of the last whole checkpoint; other trainers write a file of the same name."""
    number = (folder / LATEST).read_text().strip()
    source = folder / (f"iter_{int(number):07d}" if number.isdecimal() else number)
    if not (source / PROGRESS).exists():
        raise TrainingError(
            f"{source}: has no {PROGRESS}, expected a checkpoint of the native trainer — convert it, or correct --load"
        )
    return source


def _check(state: dict[str, torch.Tensor], saved: dict[str, Any], source: Path) -> None:
    missing = sorted(set(state) - set(saved))
    if missing:
        what = "optimizer states" if missing[0].startswith("optimizer.") else "parameters"
        raise TrainingError(
            f"{source}: has no {missing[0]}, nor {len(missing) - 1} other {what}, expected all — load its weights only "
            "with --finetune, or train the model it is of"
        )
    for name, tensor in state.items():
        shape = tuple(saved[name].size)
        if shape != tuple(tensor.shape):
            raise TrainingError(
                f"{source}: {name} is {list(shape)}, expected {list(tensor.shape)} — train the model it is of; the "
                "padded vocabulary may differ with the tensor parallel size"
            )


def _bring_to_host(state: dict[str, torch.Tensor], trainer: Trainer) -> None:
    """Copy what was read to where it belongs, if that is in host memory: a DTensor is on the device of its mesh."""
    targets = {f"model.{one.name}": one.local for one in trainer.parameters}
    for one, states in zip(trainer.optimizer.parameters, trainer.optimizer.states, strict=True):
        targets |= {f"optimizer.{one.name}.{name}": tensor for name, tensor in states.items()}
    for name, target in targets.items():
        if name in state and local(state[name]).device != target.device:
            target.copy_(local(state[name]))


def _generators(mesh: Mesh) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if mesh.device.type != "cpu":
        states["device"] = devices.rng_state(mesh.device)
    return {f"generator.{mesh.rank}.{name}": state for name, state in states.items()}


def _set_generators(mesh: Mesh, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states[f"generator.{mesh.rank}.cpu"])
    if mesh.device.type != "cpu":
        devices.set_rng_state(mesh.device, states[f"generator.{mesh.rank}.device"])


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _forget_older(folder: Path, keep: int | None) -> None:
    if keep is not None:
        for old in sorted(folder.glob("iter_" + "[0-9]" * 7))[:-keep]:
            shutil.rmtree(old)


def _wait(mesh: Mesh) -> None:
    if mesh.parallel.world_size > 1:
        dist.barrier()


def due(config: TrainConfig, iteration: int) -> bool:
    """Return whether a checkpoint is to be saved after this iteration."""
    wanted = config.checkpoint
    if wanted.save is None:
        return False
    by_interval = wanted.interval > 0 and iteration > 0 and iteration % wanted.interval == 0
    return by_interval or iteration in wanted.steps or (wanted.at_end and iteration == config.iterations)
