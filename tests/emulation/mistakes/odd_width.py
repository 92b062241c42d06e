import torch
import torch_npu

hidden = torch.ones(2, 7, device="npu")
gated = torch_npu.npu_swiglu(hidden)  # limit: npu::npu_swiglu
