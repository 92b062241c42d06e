"""A model under DistributedDataParallel, then one under FSDP2, whose collectives use separate streams, on npu or cpu.

Each rank records its losses: five steps of the one, five of the other.
"""

import os
import sys

import torch
import torch.distributed as dist
from record import record
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

KIND, RANK = sys.argv[1], int(os.environ["RANK"])


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x.to(KIND, non_blocking=True)), y.to(KIND))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        record(loss.item())


def replicated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(KIND)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[RANK] if KIND == "npu" else None)
    train(parallel, [(torch.arange(64.0).reshape(8, 8) / 64 + RANK, torch.arange(8).remainder(4))] * 5)


def sharded():
    mesh = init_device_mesh(KIND, (2,))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)), nn.Linear(64, 4)).to(KIND)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    samples = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 40 * 64).view(40, 64) + RANK, torch.arange(40) % 4)
    train(model, torch.utils.data.DataLoader(samples, batch_size=8, num_workers=1, pin_memory=KIND == "npu"))


if __name__ == "__main__":
    if KIND == "npu":
        torch.npu.set_device(RANK)
    dist.init_process_group({"npu": "hccl", "cpu": "gloo"}[KIND])
    replicated()
    sharded()
    dist.destroy_process_group()
