"""ZeRO: fp32 master weights, replicated or sharded over data-parallel ranks.

| ZeRO | master weights | gradients |
|---|---|---|
| 0 | replicated | accumulated on the rank, all-reduced after the last micro batch |
| 1 | sharded, gathered once per step | accumulated on the rank, reduce-scattered after the last micro batch |
| 2 | sharded, gathered once per step | reduce-scattered after every micro batch |
| 3 | sharded, gathered for each bucket of blocks, forward and backward | reduce-scattered after every micro batch |

Offloading to host memory uses FSDP2; the rest is ``native.parallel.zero``. A single data-parallel rank has nothing to
shard, but with ZeRO-3 it does not keep the 16-bit weights of all blocks.

Both shard a rank's tensor-parallel shard: FSDP's mesh does not include the tensor axis. Tested with ZeRO-3 on 2 x 2
gloo ranks: losses and norms equal those of one process, and checkpoints load on 1 and 4 tensor ranks and on 2 data
ranks (``native.checkpoint.state`` maps a shard to the full parameter).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from ascend_adapt.config.buckets import in_buckets
from ascend_adapt.config.train_config import Parallel, Precision
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.zero import ComputeWeights

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def place(decoder: Decoder, mesh: Mesh, precision: Precision) -> None:
    """Allocate this rank's shards of the parameters, which are on the meta device.

    With 16-bit compute weights the master weights are fp32, and gradients are reduced in ``precision.reduce``.
    """
    is_alone = mesh.parallel.data == 1
    if is_offloaded(mesh):
        decoder.may_defer = False
        shard(decoder, mesh, precision)
        decoder.to_empty(device="cpu")
    elif is_alone and precision.dtype == "fp32":
        decoder.to_empty(device=mesh.device)
    else:
        blocks = list(decoder.layers.values())
        decoder.copies = ComputeWeights(decoder, blocks, mesh, DTYPES[precision.dtype], DTYPES[precision.reduce])


def shard(decoder: Decoder, mesh: Mesh, precision: Precision) -> None:
    """Shard the parameters with FSDP2."""
    parallel = mesh.parallel
    if mesh.device_mesh is None:
        raise RuntimeError(
            "shard: the mesh has no process groups, expected a mesh with groups — make it with "
            "native.parallel.mesh.build"
        )
    # On one rank the shard axis needs no collective; the replicate axis does.
    is_cut = parallel.zero_stage > 0 or parallel.data == 1
    options: dict[str, Any] = {
        "mesh": mesh.device_mesh["shard"] if is_cut else mesh.device_mesh["replicate", "shard"],
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=None if precision.dtype == "fp32" else DTYPES[precision.dtype],
            reduce_dtype=DTYPES[precision.reduce],
        ),
    }
    if is_offloaded(mesh):
        options["offload_policy"] = CPUOffloadPolicy()
    groups = list(in_buckets(decoder.layers.values(), _elements))
    for number, blocks in enumerate(groups, 1):
        # The backward pass begins with the last group.
        fully_shard(blocks, reshard_after_forward=parallel.zero_stage == 3 and number < len(groups), **options)
    fully_shard(decoder, reshard_after_forward=False, **options)


def _elements(block: nn.Module) -> int:
    return sum(one.numel() for one in block.parameters())


def is_offloaded(mesh: Mesh) -> bool:
    """Whether master weights and optimizer states are offloaded to host memory; always False on a CPU."""
    return mesh.parallel.offload_optimizer and mesh.device.type != "cpu"


def before_passes(decoder: Decoder) -> None:
    """Refresh the compute weights before the passes of a step or an evaluation."""
    if decoder.copies is not None:
        decoder.copies.refresh()


def before_backward(decoder: Decoder, parallel: Parallel, *, is_last: bool) -> None:
    """Prepare a backward pass of this decoder; the last one of a step (``is_last``) reduces all gradients."""
    if isinstance(decoder, FSDPModule):
        decoder.set_requires_gradient_sync(is_last or parallel.zero_stage >= 2)
        decoder.set_reshard_after_backward(is_last or parallel.zero_stage == 3)
    elif decoder.copies is not None:
        decoder.copies.begin_backward(is_last=is_last)


def after_passes(decoder: Decoder) -> None:
    """End the passes of a step: set the gradients of the master weights."""
    if decoder.copies is not None:
        decoder.copies.set_master_gradients()


def abandon_passes(decoder: Decoder) -> None:
    """Drop the gradients that the failed passes of a step have left."""
    if decoder.copies is not None:
        decoder.copies.abandon()
