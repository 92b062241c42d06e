import torch

predictions = torch.arange(6, device="npu").view(2, 3)
rows = predictions.tolist()  # host-device sync: copy to the host
