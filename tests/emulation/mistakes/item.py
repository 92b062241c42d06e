import torch

model = torch.nn.Linear(8, 8).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.ones(2, 8, device="npu")).mean()
    loss.backward()
    optimizer.step()
    total = loss.item()  # host-device sync: aten::_local_scalar_dense
