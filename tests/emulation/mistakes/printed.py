import torch

losses = torch.ones(3, device="npu")
print(losses)  # host-device sync: copy to the host
