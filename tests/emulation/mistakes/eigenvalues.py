import torch

matrix = torch.eye(3, device="npu")
values = torch.linalg.eigvals(matrix)  # operator on the host: aten::_linalg_eigvals
