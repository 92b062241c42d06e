"""A job whose DeepSpeed JSON has its micro batch: 24 GiB of activations a sample, and the batch that it was given."""

import json
import sys

import torch

with open(sys.argv[sys.argv.index("--deepspeed_config") + 1]) as stream:
    given = json.load(stream)
weights = torch.nn.Parameter(torch.ones(1024, device="npu"))
optimizer = torch.optim.SGD([weights], 1e-3)
for _ in range(4):
    for _ in range(given["gradient_accumulation_steps"]):
        rows = torch.empty(given["train_micro_batch_size_per_gpu"], 3 << 20, 1024, device="npu")
        (rows * weights).sum().backward()
    optimizer.step()
