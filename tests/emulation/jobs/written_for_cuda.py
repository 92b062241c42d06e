"""A training script for a GPU that does not mention NPUs."""

import torch
from record import record
from torch import nn

assert torch.cuda.is_available()
torch.cuda.set_device(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.cuda.amp.GradScaler(init_scale=2.0**10)
x, y = torch.arange(64.0).reshape(8, 8).div(64).cuda(), torch.arange(8).remainder(4).to("cuda:0")
for _ in range(5):
    with torch.cuda.amp.autocast(dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    record(loss.item())
record([torch.cuda.get_device_name(0), x.is_cuda, torch.cuda.max_memory_allocated() > 0, scaler.get_scale()])
