"""An ordinary DeepSpeed job: two pipeline stages, two model-parallel ranks each, a bool mask between the stages.

Prints a JSON line with the losses of three steps and of an evaluation, as hexadecimal floats, so that runs on
different releases can be compared bit for bit. Knows nothing of ascend_adapt.
"""

import json

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

VOCABULARY, HIDDEN, LENGTH, MICRO_BATCH, MICRO_BATCHES = 32, 16, 8, 2, 4


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, HIDDEN)

    def forward(self, inputs):
        tokens, mask = inputs
        return self.table(tokens), mask


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, inputs):
        hidden, mask = inputs
        return hidden + torch.tanh(self.linear(hidden)), mask


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, inputs):
        return self.linear(inputs[0])


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def batches():
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    while True:
        tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, LENGTH), generator=generator)
        yield (tokens, mask.clone()), (tokens + 1) % VOCABULARY


def main():
    deepspeed.init_distributed(dist_backend="nccl")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = PipelineModule(
        layers=[LayerSpec(Embedding), LayerSpec(Block), LayerSpec(Block), LayerSpec(Head)],
        topology=PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=world // 4),
        loss_fn=loss,
        partition_method="uniform",
    )
    config = {
        "train_batch_size": MICRO_BATCH * MICRO_BATCHES * (world // 4),
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    engine.set_has_attention_mask(True)
    data = batches()
    losses = [engine.train_batch(data_iter=data).item().hex() for _ in range(3)]
    losses.append(engine.eval_batch(batches()).item().hex())
    if rank == world - 1:
        print(json.dumps({"deepspeed": deepspeed.__version__, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
