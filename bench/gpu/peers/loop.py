"""The training loops of the peers: the same batches as the native trainer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.shapes import LR, WEIGHT_DECAY


def steps(config: Any, clock: Clock, step: Callable[[list[Any]], Any]) -> None:
    """Train by ``step``, which gets the micro batches, int64 [B, S], each token the label of the one before."""
    from ascend_adapt.native import device as devices
    from ascend_adapt.native.parallel import mesh as meshes
    from ascend_adapt.native.samples.loader import Samples

    samples = Samples(config, meshes.single(devices.of_this_rank()), "train")
    accumulation = config.batch.accumulation
    for _ in range(config.iterations):
        clock.tick(step(list(samples.next(accumulation)["tokens"].chunk(accumulation))).item())


def train(config: Any, clock: Clock, model: Any, loss_of: Callable[[Any], Any]) -> None:
    """Train ``model`` with torch's fused AdamW and clipping; ``loss_of`` returns the loss of token ids."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)

    def step(parts: list[Any]) -> Any:
        losses = []
        for part in parts:
            loss = loss_of(part)
            (loss / len(parts)).backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean()

    steps(config, clock, step)


def one_rank(on_gpu: bool) -> None:
    """Start the process group of one rank that distributed peers need."""
    import torch

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
