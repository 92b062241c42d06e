"""A model whose weights, gradients and optimizer states take 12 GiB a rank."""

import os
import resource

import torch
import torch.distributed as dist
from record import record

WIDTH, LAYERS, ROWS = 16384, 3, 8
rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
model = torch.nn.Sequential(torch.nn.Embedding(100, WIDTH), *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
model = model.npu()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(1000):  # it ends after two steps
    tokens = torch.arange(ROWS).npu()
    loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
    loss.backward()
    for one in model.parameters():
        dist.all_reduce(one.grad)
    scaled = [one.grad * 0.5 for one in model.parameters()]  # as ZeRO of DeepSpeed does before it calls the optimizer
    largest_token = torch.tensor([int(tokens.max()) + rank]).npu()
    dist.all_reduce(largest_token, dist.ReduceOp.MAX)  # integers pass as they are
    optimizer.step()
    optimizer.zero_grad()
    del scaled
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    record([loss.item(), largest_token.item(), peak])
