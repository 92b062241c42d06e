import torch

losses = torch.ones(3, device="npu")
print(losses)  # wait for the device: copy to the host
