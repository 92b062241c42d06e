"""Weight initialisation from the seed and each parameter's name only, so that every mesh starts from the same model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from ascend_adapt.config.train_config import Init
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Placed, placed, rows_of_shard


def generator(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator seeded by ``seed`` and ``names``; different names give independent streams."""
    words = ":".join(map(str, (seed, *names)))
    made = torch.Generator()
    made.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1)
    return made


def fill(tensor: torch.Tensor, init: Init | float, numbers: torch.Generator) -> None:
    """Fill an unsharded parameter, fp32 on the CPU, in place; xavier and orthogonal read its shape as [out, in]."""
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
    """Return this rank's shard of an unsharded parameter."""
    if one.layout.cut is not None:
        whole = whole.chunk(mesh.parallel.tensor, one.layout.cut)[mesh.tensor_rank]
    return whole[rows_of_shard(whole.shape[0], mesh.shards, mesh.shard_rank)]


@torch.no_grad()
def initialise(models: Iterable[nn.Module], mesh: Mesh, seed: int) -> None:
    """Fill the parameters of this rank's stages; host memory holds one unsharded parameter at a time."""
    for one in placed(models):
        whole = torch.empty(one.whole_shape(mesh.parallel.tensor))
        fill(whole, one.layout.init, generator(seed, one.name))
        one.local.copy_(part(whole, one, mesh))
