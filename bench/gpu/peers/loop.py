"""The training loop of the peers: the same batches as the native trainer, torch's fused AdamW, clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.shapes import LR, WEIGHT_DECAY


def train(config: Any, clock: Clock, model: Any, loss_of: Callable[[Any], Any]) -> None:
    """Train ``model``; ``loss_of`` returns the loss of token ids, int64 [B, S], each the label of the one before."""
    import torch

    from ascend_adapt.native import device as devices
    from ascend_adapt.native.parallel import mesh as meshes
    from ascend_adapt.native.samples.loader import Samples

    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    samples = Samples(config, meshes.single(devices.of_this_rank()), "train")
    accumulation = config.batch.accumulation
    for _ in range(config.iterations):
        losses = []
        for part in samples.next(accumulation)["tokens"].chunk(accumulation):
            loss = loss_of(part)
            (loss / accumulation).backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.tick(torch.stack(losses).mean().item())
