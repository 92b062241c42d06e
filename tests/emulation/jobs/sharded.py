"""A model under FSDP2 (fully_shard), whose collectives use separate streams, on npu or cpu; records the losses."""

import os
import sys

import torch
import torch.distributed as dist
from record import record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

KIND, RANK = sys.argv[1], int(os.environ["RANK"])
if KIND == "npu":
    torch.npu.set_device(RANK)
dist.init_process_group({"npu": "hccl", "cpu": "gloo"}[KIND])
mesh = init_device_mesh(KIND, (2,))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)), nn.Linear(64, 4)).to(KIND)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 40 * 64).view(40, 64) + RANK, torch.arange(40) % 4)
for x, y in torch.utils.data.DataLoader(samples, batch_size=8, num_workers=1, pin_memory=KIND == "npu"):
    loss = nn.functional.cross_entropy(model(x.to(KIND, non_blocking=True)), y.to(KIND))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    record(loss.item())
dist.destroy_process_group()
