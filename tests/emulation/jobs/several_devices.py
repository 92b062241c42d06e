"""torch.nn.DataParallel in one process that uses every device; prints its losses."""

import json

import torch
from torch import nn

torch.manual_seed(0)
model = nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.arange(64.0).reshape(8, 8) / 64, torch.arange(8).remainder(4)
losses = []
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"devices": torch.cuda.device_count(), "losses": losses}))
