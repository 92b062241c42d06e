"""The first numbers of every parameter: by its name and the seed alone, so that every mesh starts from one model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from ascend_adapt.native.config.train_config import Init
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Placed, placed, rows_of_shard


def generator(seed: int, *names: object) -> torch.Generator:
    """Return a generator on the CPU for one purpose; other names draw other numbers."""
    words = ":".join(map(str, (seed, *names)))
    made = torch.Generator()
    made.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1)
    return made


def fill(tensor: torch.Tensor, init: Init | float, numbers: torch.Generator) -> None:
    """Fill a whole parameter, fp32 on the CPU, in place; [out, in] is what xavier and orthogonal look at."""
    if not isinstance(init, Init):
        tensor.fill_(init)
    elif init.kind == "normal":
        tensor.normal_(0.0, init.std, generator=numbers)
    elif init.kind == "xavier_uniform":
        nn.init.xavier_uniform_(tensor, generator=numbers)
    elif init.kind == "xavier_normal":
        nn.init.xavier_normal_(tensor, generator=numbers)
    else:
        nn.init.orthogonal_(tensor, gain=init.gain, generator=numbers)


def part(whole: torch.Tensor, one: Placed, mesh: Mesh) -> torch.Tensor:
    """Return what this rank holds of a whole parameter."""
    if one.layout.cut is not None:
        whole = whole.chunk(mesh.parallel.tensor, one.layout.cut)[mesh.tensor_rank]
    return whole[rows_of_shard(whole.shape[0], mesh.shards, mesh.shard_rank)]


@torch.no_grad()
def initialise(models: Iterable[nn.Module], mesh: Mesh, seed: int) -> None:
    """Fill the parameters of this rank's stages; one whole parameter at a time is in host memory."""
    for one in placed(models):
        whole = torch.empty(one.whole_shape(mesh.parallel.tensor))
        fill(whole, one.layout.init, generator(seed, one.name))
        one.local.copy_(part(whole, one, mesh))
