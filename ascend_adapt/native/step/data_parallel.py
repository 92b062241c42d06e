"""ZeRO: masters of the parameters in fp32, cut over data-parallel ranks or whole on each.

| ZeRO | parameters | between micro batches |
|---|---|---|
| 0 | whole on each rank | gradients stay on the rank; the last micro batch sums them |
| 1 | cut, gathered once a step | the same |
| 2 | cut, gathered once a step | every micro batch sums gradients, and each rank keeps its piece |
| 3 | cut, gathered for each bucket of blocks, forward and backward | the same |

The last is FSDP2's, as is all of it where masters wait in host memory; the others are those of ``parallel.zero``. One
data-parallel rank has nothing to share, but ZeRO-3 asks for the memory that 16-bit weights of all blocks take.

Both cut what tensor parallelism left: FSDP's mesh has one axis, and knows nothing of tensor-parallel ranks. Seen on 2 x
2 gloo ranks, ZeRO-3: losses and norms of one process, and what distributed.checkpoint saved is read on 1 and 4 tensor
ranks and 2 data ranks (``native.state`` says how a piece lies in the whole).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from ascend_adapt.native.config.buckets import in_buckets
from ascend_adapt.native.config.train_config import Parallel, Precision
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.zero import ComputeWeights

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def place(decoder: Decoder, mesh: Mesh, precision: Precision) -> None:
    """Give the parameters, which have shapes only, memory on the device, each rank's own.

    What is not fp32 is computed from fp32 masters, and its gradients are summed in ``precision.reduce``.
    """
    is_alone = mesh.parallel.data == 1
    if is_offloaded(mesh) or (mesh.parallel.zero_stage == 3 and not (is_alone and precision.dtype == "fp32")):
        shard(decoder, mesh, precision)
        decoder.to_empty(device="cpu" if is_offloaded(mesh) else mesh.device)
    elif is_alone and precision.dtype == "fp32":
        decoder.to_empty(device=mesh.device)
    else:
        decoder.copies = ComputeWeights(decoder, mesh, DTYPES[precision.dtype], DTYPES[precision.reduce])


def shard(decoder: Decoder, mesh: Mesh, precision: Precision) -> None:
    """Let FSDP hold the parameters."""
    parallel = mesh.parallel
    if mesh.device_mesh is None:
        raise RuntimeError("shard: the mesh has no process groups, expected one that native.mesh.build made")
    # One rank is a mesh without a collective, which that of replicas is not.
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
    for blocks in in_buckets(decoder.layers.values(), _numbers):
        fully_shard(blocks, reshard_after_forward=parallel.zero_stage == 3, **options)
    fully_shard(decoder, reshard_after_forward=False, **options)


def _numbers(block: nn.Module) -> int:
    return sum(one.numel() for one in block.parameters())


def is_offloaded(mesh: Mesh) -> bool:
    """Whether master weights and optimizer states are kept in host memory; on a CPU they always are."""
    return mesh.parallel.offload_optimizer and mesh.device.type != "cpu"


def before_passes(decoder: Decoder) -> None:
    """Say that passes begin, of a step or an evaluation: weights may be others than in the last."""
    if decoder.copies is not None:
        decoder.copies.refresh()


def before_backward(decoder: Decoder, parallel: Parallel, *, is_last: bool) -> None:
    """Say whether the backward pass that begins is the step's last of this decoder."""
    if isinstance(decoder, FSDPModule):
        decoder.set_requires_gradient_sync(is_last or parallel.zero_stage >= 2)
        decoder.set_reshard_after_backward(is_last or parallel.zero_stage == 3)
    elif decoder.copies is not None:
        decoder.copies.begin_backward(is_last=is_last)


def after_passes(decoder: Decoder) -> None:
    """Say that the step's last backward pass is done: the parameters have their gradients now."""
    if decoder.copies is not None:
        decoder.copies.hand_over()
