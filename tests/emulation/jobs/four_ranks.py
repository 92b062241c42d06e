"""Reductions of every length, and groups along both axes of a 2 x 2 mesh, on four ranks; each records success."""

import os

import torch
import torch.distributed as dist
import torch_npu
from record import record

RANK, SIZE = int(os.environ["RANK"]), 4
torch.npu.set_device(RANK)
torch_npu._C._logging._LogContext.GetInstance().setLogs({"torch.distributed": 20})  # informs of each communicator
dist.init_process_group("hccl")

for length in (1, 2, 3, 5, 1001):
    numbers = torch.arange(length)
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.float16):
        tensor = (numbers + RANK).to(dtype).npu()
        dist.all_reduce(tensor)
        exact = (numbers * SIZE + 6).float()
        # The halves round each of three sums.
        torch.testing.assert_close(tensor.cpu().float(), exact, rtol=2e-2 if dtype.itemsize == 2 else 0, atol=0)
    tensor = (numbers + RANK).float().npu()
    dist.reduce(tensor, 2)
    assert RANK != 2 or tensor.cpu().equal((numbers * SIZE + 6).float())
    tensor = torch.empty(length, device="npu")
    dist.reduce_scatter_tensor(tensor, (torch.arange(float(SIZE * length)) + RANK).npu())
    assert tensor.cpu().equal((torch.arange(float(SIZE * length)) * SIZE + 6)[RANK * length : (RANK + 1) * length])

rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
for _ in range(20):
    along, across = (torch.full((100,), float(RANK), device="npu") for _ in range(2))
    first = dist.all_reduce(along, group=rows[RANK // 2], async_op=True)
    second = dist.all_reduce(across, group=columns[RANK % 2], async_op=True)
    second.wait()
    first.wait()
    assert (along[0].item(), across[-1].item()) == ((1, 1, 5, 5)[RANK], (2, 4, 2, 4)[RANK])

for root in range(20):
    tensor = torch.full((1000,), float(RANK), device="npu")
    dist.broadcast(tensor, root % SIZE)
    assert tensor.unique().tolist() == [root % SIZE]
dist.barrier()
record("right")
