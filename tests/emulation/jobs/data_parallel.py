"""A model under DistributedDataParallel, on npu or cpu; each rank records its losses."""

import os
import sys

import torch
import torch.distributed as dist
from record import record
from torch import nn

KIND, RANK = sys.argv[1], int(os.environ["RANK"])
if KIND == "npu":
    torch.npu.set_device(RANK)
dist.init_process_group({"npu": "hccl", "cpu": "gloo"}[KIND])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(KIND)
parallel = nn.parallel.DistributedDataParallel(model, device_ids=[RANK] if KIND == "npu" else None)
optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
x = (torch.arange(64.0).reshape(8, 8) / 64 + RANK).to(KIND)
y = torch.arange(8).remainder(4).to(KIND)
for _ in range(5):
    loss = nn.functional.cross_entropy(parallel(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    optimizer.step()
    record(loss.item())
dist.destroy_process_group()
