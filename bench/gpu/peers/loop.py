"""Training loops of the peers, with the same batches as the native trainer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.shapes import LR, WEIGHT_DECAY


def steps(config: Any, clock: Clock, step: Callable[[list[Any]], Any]) -> None:
    """Train by calling ``step`` with the micro batches, int64 [B, S]; each token is the label of the previous one."""
    from ascend_adapt.native import device as devices
    from ascend_adapt.native.parallel.mesh import Mesh
    from ascend_adapt.native.samples.loader import Samples

    rank = int(os.environ.get("RANK", "0"))
    samples = Samples(config, Mesh(config.parallel, rank, devices.of_this_rank()), "train")
    accumulation = config.batch.accumulation
    clock.begin()
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


def start_ranks(on_cpu: bool) -> None:
    """Initialize the process group that distributed peers need, with one rank if no launcher has set RANK."""
    import torch

    if not on_cpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "gloo" if on_cpu else "nccl"
    if "RANK" in os.environ:
        torch.distributed.init_process_group(backend)
        return
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
