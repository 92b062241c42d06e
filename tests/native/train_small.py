"""Train small models on the ranks of a job and write what each step gave; started by torch.distributed.run.

Usage: train_small.py OUTPUT CASES, CASES a JSON list of [name, model, steps, {parallel sizes and micro}].
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from small_models import MODELS, batch, config

from ascend_adapt.native import device as devices
from ascend_adapt.native import mesh as meshes
from ascend_adapt.native.config import Precision
from ascend_adapt.native.trainer import Trainer


def train(settings, mesh, steps):
    """Return losses and norms of the steps, and the loss of an evaluation before and after them."""
    trainer = Trainer(settings, mesh)
    micro_batches = settings.batch.accumulation
    held_out = batch(1000, settings, mesh.data_rank)
    held_out = {name: tensor.to(mesh.device) for name, tensor in held_out.items()}
    told = {"evaluated": [trainer.evaluate(held_out, micro_batches)], "losses": [], "norms": []}
    for number in range(steps):
        mine = {name: tensor.to(mesh.device) for name, tensor in batch(number, settings, mesh.data_rank).items()}
        step = trainer.step(mine, micro_batches, lr=3e-3, weight_decay=0.1)
        told["losses"].append(step.loss)
        told["norms"].append(step.grad_norm)
    told["evaluated"].append(trainer.evaluate(held_out, micro_batches))
    return told


def main():
    output, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    device = devices.of_this_rank()
    dist.init_process_group(devices.backend(device))
    told = {}
    for name, model, steps, sizes in cases:
        dtype = sizes.pop("dtype", "fp32")
        settings = replace(config(MODELS[model], **sizes), precision=Precision(dtype=dtype))
        told[name] = train(settings, meshes.build(settings.parallel, device), steps)
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"device": device.type, **told}))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
