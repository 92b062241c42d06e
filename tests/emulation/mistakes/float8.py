import torch

weight = torch.ones(4, 4, device="npu")
small = weight.to(torch.float8_e4m3fn)  # limit: aten::copy_
