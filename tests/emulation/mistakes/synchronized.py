import torch

for _ in range(2):
    torch.ones(3, device="npu").sum()
    torch.npu.synchronize()  # host-device sync: torch.npu.synchronize
