"""A device that saturates, two ranks: torch_npu's GradScaler, and sums of collectives; each rank records them."""

import os

import torch
import torch.distributed as dist
import torch_npu
from record import record

RANK = int(os.environ["RANK"])
torch.npu.set_device(RANK)
dist.init_process_group("hccl")

weight = torch.nn.Parameter(torch.ones(4, device="npu"))
optimizer = torch.optim.SGD([weight], lr=1.0)
scaler = torch_npu.npu.amp.GradScaler(init_scale=2.0**30)
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale((weight.half() * 2).sum().float()).backward()
    scaler.step(optimizer)
    scaler.update()
record(["scale", scaler.get_scale(), weight.tolist()])

for dtype in (torch.float16, torch.float32):
    torch_npu.npu.utils.clear_npu_overflow_flag()
    largest = torch.finfo(dtype).max
    tensor = torch.full((4,), largest, dtype=dtype, device="npu")
    dist.all_reduce(tensor)
    flag = torch.tensor([int(torch_npu.npu.utils.get_npu_overflow_flag())], dtype=torch.int32, device="npu")
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    record([str(dtype), (tensor == largest).all().item(), flag.item()])
