import torch

labels = torch.tensor([1, -100, 2], device="npu")
first = labels[torch.tensor([0, 1], device="npu")]
kept = labels[labels != -100]  # host-device sync: aten::index.Tensor
