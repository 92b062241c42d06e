import torch

matrix = torch.eye(3, device="npu")
values = torch.linalg.eigvals(matrix)  # CPU fallback: aten::_linalg_eigvals
