import torch

model = torch.nn.Linear(3, 3).npu()
model.double()  # cast: to float64
