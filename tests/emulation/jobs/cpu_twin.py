"""The same training as written_for_cuda.py, on the CPU: autocast to float16, no scaler."""

import torch
from record import record
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.arange(64.0).reshape(8, 8).div(64), torch.arange(8).remainder(4)
for _ in range(5):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    record(loss.item())
