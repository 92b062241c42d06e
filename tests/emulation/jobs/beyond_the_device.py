"""Allocates more than a device has."""

import torch

kept = [torch.nn.Parameter(torch.empty(1 << 32, dtype=torch.bfloat16, device="npu")) for _ in range(9)]
