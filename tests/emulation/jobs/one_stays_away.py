"""A collective that rank 1 never calls; rank 0 records the error."""

import os
import time

import torch
import torch.distributed as dist
from record import record

RANK = int(os.environ["RANK"])
torch.npu.set_device(RANK)
dist.init_process_group("hccl")
dist.all_reduce(torch.ones(1, device="npu"))
if RANK == 1:
    time.sleep(8)
    os._exit(0)
try:
    dist.all_reduce(torch.ones(1, device="npu"))
    torch.npu.synchronize()
except RuntimeError as error:
    record(str(error))
os._exit(0)
