"""An ordinary DeepSpeed job: ZeRO of one stage on two ranks, a checkpoint saved and loaded.

Usage: zero.py STAGE FOLDER. Prints a JSON line with the losses, as hexadecimal floats, of three steps, of two more, and
of the same two after loading what was saved before them. Knows nothing of ascend_adapt.
"""

import json
import sys

import deepspeed
import torch
from torch import nn

VOCABULARY, HIDDEN, LENGTH, MICRO_BATCH = 32, 16, 8, 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, VOCABULARY)
        )

    def forward(self, tokens):
        return nn.functional.cross_entropy(self.layers(tokens).view(-1, VOCABULARY), (tokens.view(-1) + 1) % VOCABULARY)


def main():
    stage, folder = int(sys.argv[1]), sys.argv[2]
    deepspeed.init_distributed(dist_backend="nccl")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = Model()
    config = {
        "train_batch_size": MICRO_BATCH * world,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def steps(count, seed):
        generator = torch.Generator().manual_seed(seed * 1000 + rank)
        losses = []
        for _ in range(count):
            tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, LENGTH), generator=generator)
            loss = engine(tokens)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item().hex())
        return losses

    reported = {"trained": steps(3, 1)}
    engine.save_checkpoint(folder, tag="saved")
    reported["continued"] = steps(2, 3)
    engine.load_checkpoint(folder, tag="saved")
    reported["loaded"] = steps(2, 3)
    backend = torch.distributed.get_backend()
    if rank == 0:
        print(json.dumps({"deepspeed": deepspeed.__version__, "backend": backend, **reported}), flush=True)


if __name__ == "__main__":
    main()
