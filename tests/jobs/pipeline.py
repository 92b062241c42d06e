"""An ordinary DeepSpeed job: two pipeline stages, evaluation with and without logits, a checkpoint saved and loaded.

Usage: pipeline.py FOLDER. Prints a JSON line with the losses, as hexadecimal floats, of three steps, of an evaluation,
of two more steps, and of the same two steps after loading what was saved before them. Knows nothing of ascend_adapt.
"""

import json
import sys

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

VOCABULARY, HIDDEN, LENGTH, MICRO_BATCH, MICRO_BATCHES = 32, 16, 8, 2, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden):
        return hidden + torch.tanh(self.linear(hidden))


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, LENGTH), generator=generator)
        yield tokens, (tokens + 1) % VOCABULARY


def main():
    deepspeed.init_distributed(dist_backend="nccl")
    torch.manual_seed(0)
    layers = [
        LayerSpec(nn.Embedding, VOCABULARY, HIDDEN),
        LayerSpec(Block),
        LayerSpec(Block),
        LayerSpec(nn.Linear, HIDDEN, VOCABULARY),
    ]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform")
    config = {
        "train_batch_size": MICRO_BATCH * MICRO_BATCHES,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    data = batches(1)
    reported = {"trained": [engine.train_batch(data_iter=data).item().hex() for _ in range(3)]}
    reported["evaluated"] = engine.eval_batch(batches(2)).item().hex()
    with_logits = engine.eval_batch(batches(2), return_logits=True)
    reported["with_logits"] = with_logits[0].item().hex()
    shape = None if with_logits[1] is None else list(with_logits[1].shape)
    engine.save_checkpoint(sys.argv[1], tag="saved")
    reported["continued"] = [engine.train_batch(data_iter=batches(3)).item().hex() for _ in range(2)]
    engine.load_checkpoint(sys.argv[1], tag="saved")
    reported["loaded"] = [engine.train_batch(data_iter=batches(3)).item().hex() for _ in range(2)]
    backend = torch.distributed.get_backend()
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        print(
            json.dumps({"deepspeed": deepspeed.__version__, "backend": backend, "logits": shape, **reported}),
            flush=True,
        )


if __name__ == "__main__":
    main()
