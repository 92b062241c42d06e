"""0.5 G parameters on two ranks under FSDP2 and each stage of ZeRO; records what is allocated between steps."""

import json
import os
import sys

import deepspeed
import torch
from record import record
from torch.distributed.fsdp import fully_shard

WIDTH, LAYERS = 16384, 2
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed()


def build(device):
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(LAYERS)))


def train(kind, step):
    for _ in range(2):
        step(torch.ones(4, WIDTH, device="npu", dtype=torch.bfloat16))
    record([kind, torch.npu.memory_allocated()])


def fsdp2():
    model = build("meta").bfloat16()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="npu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step(x):
        model(x).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    train("FSDP2", step)


def zero(stage):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1 << 20, "stage3_prefetch_bucket_size": 1 << 20},
    }
    model = build("cpu")
    groups = [{"params": [one]} for one in model.parameters()]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)

    def step(x):
        engine.backward(engine(x).float().sum())
        engine.step()

    train(f"ZeRO-{stage}", step)
    engine.destroy()


fsdp2()
for stage in json.loads(sys.argv[1]):
    zero(stage)
