import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()  # model on the CPU: AdamW.step
