"""Train another code base's own model and the native one from the same weights on the same batches, side by side.

Usage: beside_upstream.py UPSTREAM MODEL STEPS, with the code base importable. Prints its version and the losses and
gradient norms of both as JSON. Model and loss are upstream's, unmodified. Its optimizer cannot be made on a CPU:
torch's AdamW with Megatron's two groups, and torch's clipping, stand for it.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from small_models import MODELS, batch, config
from upstream_models import UPSTREAMS

from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

LR, DECAY, CLIP = 3e-3, 0.1, 1.0


@torch.no_grad()
def copy(trainer, upstream):
    """Fill upstream's parameters with ours, by assignment."""
    ours = {one.name: one.local for one in trainer.parameters}
    left = set(ours)
    for name, parameter in upstream.module.named_parameters():
        mine = upstream.own_name(name)
        left.discard(mine)
        if mine not in ours and "post_attention_norm" in mine:
            continue  # gpt_j_tied makes a second norm, and uses it nowhere
        values = ours[mine]
        gate = mine.replace("dense_h_to_4h", "gate")
        if gate != mine and gate in ours:
            values = torch.cat([ours[gate], values])
            left.discard(gate)
        parameter.copy_(values)
    assert not left, f"not copied: {left}"


def train(upstream, settings, steps):
    parameters = list(upstream.module.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": DECAY},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    results = {"losses": [], "norms": []}
    micro_batches = settings.batch.accumulation
    for number in range(steps):
        given = batch(number, settings)
        parts = zip(*(given[name].chunk(micro_batches) for name in ("tokens", "labels", "loss_mask")), strict=True)
        losses = []
        for tokens, labels, counted in parts:
            loss = upstream.loss(tokens, labels, counted)
            (loss / micro_batches).backward()
            losses.append(loss.item())
        results["losses"].append(sum(losses) / micro_batches)
        results["norms"].append(torch.nn.utils.clip_grad_norm_(parameters, CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    return results


def main():
    name, model, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    settings = config(MODELS[model])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    trainer = Trainer(settings, meshes.single(torch.device("cpu")))
    upstream = UPSTREAMS[name](settings.model)
    copy(trainer, upstream)
    theirs = train(upstream, settings, steps)
    ours = [trainer.step(batch(number, settings), settings.batch.accumulation, LR, DECAY) for number in range(steps)]
    native = {"losses": [step.loss for step in ours], "norms": [step.grad_norm for step in ours]}
    print(json.dumps({"version": upstream.version, "upstream": theirs, "native": native}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
