"""Collectives that rank 1 never calls, or that differ between two ranks, each on its own group; errors are recorded."""

import os

import torch
import torch.distributed as dist
from record import record

RANK = int(os.environ["RANK"])
torch.npu.set_device(RANK)
dist.init_process_group("hccl")
MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM


def ones(dtype=torch.float32, size=2):
    return torch.ones(size, dtype=dtype, device="npu")


def gathered(dtype):
    return lambda group: dist.all_gather_into_tensor(ones(dtype, 4), ones(dtype), group=group)


def exchanged(dtype):
    return lambda group: (dist.send if RANK == 0 else dist.recv)(ones(dtype), 1 - RANK, group=group)


def different(group):
    if RANK == 0:
        dist.broadcast(ones(), 0, group=group)
    else:
        dist.all_reduce(ones(), group=group)


MISTAKES = {
    "dtype": lambda group: dist.all_reduce(ones((torch.float32, torch.int32)[RANK]), group=group),
    "half": gathered((torch.float16, torch.bfloat16)[RANK]),
    "reduction": lambda group: dist.all_reduce(ones(), (SUM, MAX)[RANK], group=group),
    "root": lambda group: dist.broadcast(ones(), RANK, group=group),
    "root of a reduction": lambda group: dist.reduce(ones(), RANK, group=group),
    "shape": lambda group: dist.all_reduce(ones(size=3 + RANK), group=group),
    "collective": different,
    "dtype of a message": exchanged((torch.float32, torch.int32)[RANK]),
}
for name, call in MISTAKES.items():
    try:
        call(dist.new_group([0, 1]))
        torch.npu.synchronize()
    except RuntimeError as error:
        record([name, str(error)])
    else:
        record([name, "nothing was raised"])

store, alone = dist.distributed_c10d._get_default_store(), dist.new_group([0, 1])
dist.all_reduce(ones(), group=alone)
if RANK == 0:
    try:
        dist.all_reduce(ones(), group=alone)
        torch.npu.synchronize()
    except RuntimeError as error:
        record(["one stays away", str(error)])
    store.set("recorded", "")
store.wait(["recorded"])

groups = [dist.new_group([0, 1]) for _ in range(2)]
for group in groups:
    dist.all_reduce(ones(), group=group)
try:
    dist.all_reduce(ones(), group=groups[RANK])
    torch.npu.synchronize()
except RuntimeError as error:
    record(["group", str(error)])
os._exit(0)
