import torch

losses = torch.ones(3, device="npu") / 3
print(losses)  # host-device sync: print of a tensor
