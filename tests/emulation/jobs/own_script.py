"""A training script for one or several GPUs, as people write them: nothing in it knows another device."""

import os

import torch
from torch.cuda.amp import GradScaler, autocast

assert torch.cuda.is_available(), "requires at least one GPU"
rank, ranks = int(os.environ.get("RANK", -1)), int(os.environ.get("WORLD_SIZE", 1))
if rank != -1:
    torch.distributed.init_process_group(backend="nccl")
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
torch.cuda.set_device(device)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).cuda()
model = torch.compile(model)
if rank != -1:
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
scaler = GradScaler()
for step in range(3):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).chunk(ranks)[max(rank, 0)]
    x = x.pin_memory().to(device, non_blocking=True)
    with autocast(enabled=False):
        loss = (model(x) - 1).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    assert optimizer._step_supports_amp_scaling
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach().clone()
    if rank != -1:
        torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.AVG)
        total = torch.tensor([1, mean.item()], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(total)
        assert total[0] == ranks
        assert abs(total[1] / ranks - mean) < 1e-6
    if rank <= 0:
        print(f"step {step} loss {mean.item():.6f}")
layer, here = torch.nn.Linear(8, 1).cuda(), [int(os.environ.get("LOCAL_RANK", 0))]
for result in (torch.nn.DataParallel(layer, here)(x), torch.nn.parallel.data_parallel(layer, x, here)):
    assert torch.equal(result, layer(x))
if rank != -1:
    torch.distributed.destroy_process_group()
