"""Device mesh: a rank's coordinates and its process groups.

Rank = (pipeline * data ranks + data) * tensor ranks + tensor, as Megatron, DeepSpeed and GPT-NeoX number them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ascend_adapt.config.train_config import Parallel
from ascend_adapt.errors import ConfigError

# Data-parallel ranks either replicate or shard the parameters; the other of the two axes has size 1. Both axes come
# after tensor: rows are sharded over tensor ranks first, then each shard over data ranks.
AXES = ("pipeline", "tensor", "replicate", "shard")


def check_world(parallel: Parallel, world_size: int) -> None:
    """Check that the number of ranks is the product of the axes; call it before any process group is created.

    Raises:
        ConfigError: the product differs.
    """
    if parallel.world_size != world_size:
        raise ConfigError(
            f"ranks: {world_size}, expected tensor {parallel.tensor} x pipeline {parallel.pipeline} x data "
            f"{parallel.data} = {parallel.world_size} — start this number of ranks, or change the sizes"
        )


@dataclass(frozen=True)
class Mesh:
    """This rank's coordinates and groups; a group of one rank is None."""

    parallel: Parallel
    rank: int
    device: torch.device
    device_mesh: DeviceMesh | None = None
    """Device mesh over AXES; None without process groups."""
    embedding_group: Any = None
    """Group of the first and the last pipeline rank, which both hold a tied embedding."""
    neighbours: Mapping[int, Any] = field(default_factory=dict)
    """Group with each neighbouring pipeline rank, by its rank: interleaved stages on three or more ranks need them."""

    @property
    def tensor_rank(self) -> int:
        """Position along the tensor axis."""
        return self.rank % self.parallel.tensor

    @property
    def data_rank(self) -> int:
        """Position along the data axis."""
        return self.rank // self.parallel.tensor % self.parallel.data

    @property
    def pipeline_rank(self) -> int:
        """Position along the pipeline axis."""
        return self.rank // (self.parallel.tensor * self.parallel.data)

    @property
    def shards(self) -> int:
        """Number of shards of each parameter over data-parallel ranks."""
        return self.parallel.data if self.parallel.zero_stage else 1

    @property
    def shard_rank(self) -> int:
        """Index of the shard that this rank holds."""
        return self.data_rank if self.parallel.zero_stage else 0

    def group(self, axis: str) -> Any:
        """Return the process group along an axis of AXES, or None if it has one rank."""
        if self.device_mesh is None or self.device_mesh.size(AXES.index(axis)) == 1:
            return None
        return self.device_mesh.get_group(axis)

    def sum_over_all(self, numbers: torch.Tensor) -> torch.Tensor:
        """All-reduce ``numbers`` in place, summed over all ranks."""
        if self.parallel.world_size > 1:
            dist.all_reduce(numbers)
        return numbers


def single(device: torch.device) -> Mesh:
    """Return the mesh of a single process, without process groups."""
    return Mesh(Parallel(), 0, device)


def ranks_over_axes(parallel: Parallel) -> torch.Tensor:
    """Return the ranks over AXES; tensor ranks are adjacent, as in Megatron."""
    replicate, shard = (1, parallel.data) if parallel.zero_stage else (parallel.data, 1)
    ranks = torch.arange(parallel.world_size).view(parallel.pipeline, replicate, shard, parallel.tensor)
    # contiguous() does not change the strides of axes of size 1, from which torch 2.11 derives the order of the axes.
    return ranks.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def build(parallel: Parallel, device: torch.device) -> Mesh:
    """Build this rank's mesh; every rank of the default process group must call it.

    Raises:
        ConfigError: the process group has another size.
    """
    check_world(parallel, dist.get_world_size())
    rank = dist.get_rank()
    device_mesh = DeviceMesh(device.type, ranks_over_axes(parallel), mesh_dim_names=AXES)
    embedding_group, neighbours, columns = None, {}, parallel.world_size // parallel.pipeline
    if parallel.pipeline > 1:
        for column in range(columns):
            pair = [column, (parallel.pipeline - 1) * columns + column]
            group = dist.new_group(pair)
            embedding_group = group if rank in pair else embedding_group
    if parallel.pipeline > 2 and parallel.virtual_stages > 1:
        for one in range(parallel.world_size):
            pair = [one, (one + columns) % parallel.world_size]
            group = dist.new_group(pair)
            if rank in pair:
                neighbours[sum(pair) - rank] = group
    return Mesh(parallel, rank, device, device_mesh, embedding_group, neighbours)
