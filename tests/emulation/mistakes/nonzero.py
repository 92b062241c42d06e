import torch

labels = torch.tensor([1, -100, 2], device="npu")
kept = (labels != -100).nonzero()  # host-device sync: aten::nonzero
