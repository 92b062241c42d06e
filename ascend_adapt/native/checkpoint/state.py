"""Checkpoint state: tensors under global names, which can be loaded on any mesh, and the progress of the run.

A rank's shard is described as a DTensor of the full tensor: tensor parallelism shards it by rows or columns, then FSDP
by rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Placed
from ascend_adapt.native.step.trainer import Trainer


@dataclass(frozen=True)
class TrainState:
    """Progress of a run. ``scheduled`` counts the samples or iterations by which the schedule has advanced."""

    iteration: int = 0
    consumed_samples: int = 0
    scheduled: int = 0


def whole(tensor: torch.Tensor, one: Placed, mesh: Mesh) -> torch.Tensor:
    """Return this rank's shard of a parameter, or of an optimizer state sharded like it, as a DTensor."""
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
    """Return this rank's parameters by ``model.NAME``, without copying them."""
    return {f"model.{one.name}": whole(one.local, one, trainer.mesh) for one in trainer.parameters}


def optimizer_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the optimizer states by ``optimizer.NAME.STATE``, and each parameter's step counter."""
    optimizer, found = trainer.optimizer, {}
    for one, state, step in zip(optimizer.parameters, optimizer.states, optimizer.steps, strict=True):
        for name, tensor in state.items():
            found[f"optimizer.{one.name}.{name}"] = whole(tensor, one, trainer.mesh)
        found[f"optimizer.{one.name}.step"] = step
    return found


def generators(mesh: Mesh) -> dict[str, torch.Tensor]:
    """Return copies of the states of this rank's default generators by ``generator.RANK.cpu`` and ``.device``."""
    states = {"cpu": torch.get_rng_state()}
    if mesh.device.type != "cpu":
        states["device"] = devices.rng_state(mesh.device)
    return {f"generator.{mesh.rank}.{name}": state for name, state in states.items()}


def set_generators(mesh: Mesh, states: dict[str, torch.Tensor]) -> None:
    """Restore this rank's default generators from the states that ``generators`` returned."""
    torch.set_rng_state(states[f"generator.{mesh.rank}.cpu"])
    if mesh.device.type != "cpu":
        devices.set_rng_state(mesh.device, states[f"generator.{mesh.rank}.device"])


def due(config: TrainConfig, iteration: int) -> bool:
    """Return whether a checkpoint is to be saved after this iteration."""
    wanted = config.checkpoint
    if wanted.save is None:
        return False
    by_interval = wanted.interval > 0 and iteration > 0 and iteration % wanted.interval == 0
    return by_interval or iteration in wanted.steps or (wanted.at_end and iteration == config.iterations)
