"""Every collective of torch.distributed on two ranks of hccl; each rank records (name, result)."""

import os

import torch
import torch.distributed as dist
import torch_npu
from record import record
from torch.distributed import _coalescing_manager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(RANK)
dist.init_process_group("hccl")


def full(value, *shape, dtype=torch.float32):
    return torch.full(shape or (2,), value, dtype=dtype, device="npu")


def empty(*shape):
    return torch.full(shape or (2,), -1.0, device="npu")


def reduced(operation, dtype):
    tensor = full(RANK + 2, 3, dtype=dtype)
    dist.all_reduce(tensor, operation)
    return tensor.tolist()


def failure(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def memory_of_group(**config):
    """Return the MiB that a new group takes on the device."""
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options.hccl_config = config
    before = torch.npu.mem_get_info()[0]
    group = dist.new_group(backend="hccl", pg_options=options)
    dist.all_reduce(small, group=group)
    torch.npu.synchronize()
    return (before - torch.npu.mem_get_info()[0]) / 2**20


small = full(1)
configs = {}, {"hccl_buffer_name": "shared"}, {"hccl_buffer_name": "shared"}, {"hccl_buffer_size": 50}
record(["buffers", [memory_of_group(**config) for config in configs]])
record(["AVG int32", reduced(dist.ReduceOp.AVG, torch.int32)])
for name in ("float32", "bfloat16", "float16", "int64", "int32", "int8", "bool"):
    record([f"sum {name}", reduced(dist.ReduceOp.SUM, getattr(torch, name))])
for name in ("MAX", "MIN", "PRODUCT", "AVG"):
    record([name, reduced(getattr(dist.ReduceOp, name), torch.float32)])
doubles = torch.ones(2, dtype=torch.float64, device="npu")
record(["float64 of HCCL", failure(lambda: dist.group.WORLD.allreduce([doubles]).wait())])
record(["float64", reduced(dist.ReduceOp.SUM, torch.float64)])

tensor = full(RANK)
dist.broadcast(tensor, 1)
record(["broadcast", tensor.tolist()])
tensor = full(RANK + 1)
dist.reduce(tensor, 0)
record(["reduce", tensor.tolist() if RANK == 0 else None])
gathered = [empty() for _ in range(SIZE)]
dist.all_gather(gathered, full(RANK))
record(["all_gather", torch.stack(gathered).tolist()])
tensor = empty(2 * SIZE)
dist.all_gather_into_tensor(tensor, full(RANK))
record(["all_gather_into_tensor", tensor.tolist()])
tensor = empty()
dist.reduce_scatter_tensor(tensor, torch.arange(2.0 * SIZE, device="npu"))
record(["reduce_scatter_tensor", tensor.tolist()])
tensor = empty()
dist.reduce_scatter(tensor, [full(RANK + part) for part in range(SIZE)])
record(["reduce_scatter", tensor.tolist()])
tensor = empty(2 * SIZE)
dist.all_to_all_single(tensor, torch.arange(2.0 * SIZE, device="npu") + 10 * RANK)
record(["all_to_all_single", tensor.tolist()])
# Rank r sends i + 1 elements to rank i.
tensor = empty((RANK + 1) * SIZE)
sizes = [part + 1 for part in range(SIZE)]
dist.all_to_all_single(tensor, full(RANK, sum(sizes)), [RANK + 1] * SIZE, sizes)
record(["all_to_all_single uneven", tensor.tolist()])
gathered = [empty(RANK + 1) for _ in range(SIZE)]
dist.all_to_all(gathered, [full(RANK, part + 1) for part in range(SIZE)])
record(["all_to_all", torch.cat(gathered).tolist()])
gathered = [empty() for _ in range(SIZE)] if RANK == 0 else None
dist.gather(full(RANK), gathered, 0)
record(["gather", torch.stack(gathered).tolist() if RANK == 0 else None])
tensor = empty()
dist.scatter(tensor, [full(part) for part in range(SIZE)] if RANK == 0 else None, 0)
record(["scatter", tensor.tolist()])

if RANK == 0:
    dist.send(torch.arange(4.0, device="npu"), 1)
else:
    tensor = empty(4)
    dist.recv(tensor, 0)
    record(["recv", tensor.tolist()])
# Both send first, more than any buffer holds.
sent, came = full(RANK, 1_000_000), empty(1_000_000)
other = 1 - RANK
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, came, other)]):
    work.wait()
record(["batch_isend_irecv", came.unique().tolist()])

alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
pair = dist.new_group([0, 1])
tensor = full(1)
dist.all_reduce(tensor, group=alone)
dist.all_reduce(tensor, group=pair)
record(["groups", tensor.tolist()])

tensor = full(1, 4_000_000)
work = dist.all_reduce(tensor, async_op=True)
pending = not work.is_completed()
work.wait()
record(["async", [pending, work.is_completed() or True, tensor.unique().tolist()]])
objects = [None] * SIZE
dist.all_gather_object(objects, {"rank": RANK, "on its device": full(RANK)})
record(["objects", [[one["rank"], one["on its device"].tolist()] for one in objects]])
dist.barrier()


def random(kind, *shape, seed=0):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (numbers * 9).clamp(-128, 127).to(kind) if kind is torch.int8 else numbers.to(kind)


hcom = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(RANK)
rows, weight = [random(torch.float16, 4, 256, seed=rank) for rank in range(SIZE)], random(torch.float16, 256, 3)
product, gathered = torch_npu.npu_all_gather_base_mm(rows[RANK].npu(), weight.npu(), hcom, SIZE)
whole = torch.cat(rows)
record(["npu_all_gather_base_mm", [gathered.cpu().equal(whole), product.cpu().equal(whole @ weight)]])
own = torch_npu.npu_mm_reduce_scatter_base(rows[RANK].npu(), weight.npu(), hcom, SIZE)
total = torch.stack([(one @ weight).float() for one in rows]).sum(0).half()
record(["npu_mm_reduce_scatter_base", own.cpu().equal(total.chunk(SIZE)[RANK])])
rows, weight = [random(torch.int8, 4, 256, seed=rank) for rank in range(SIZE)], random(torch.int8, 256, 3)
scales, scale = [random(torch.float32, 4, 1, seed=rank) for rank in range(SIZE)], random(torch.float32, 1, 3)
given = {"x1_scale": scales[RANK].npu(), "x2_scale": scale.npu(), "comm_mode": "aiv", "output_dtype": torch.float16}
product, _ = torch_npu.npu_all_gather_base_mm(rows[RANK].npu(), weight.npu(), hcom, SIZE, **given)
expected = [(one.double() @ weight.double() * scale * by_row).half() for one, by_row in zip(rows, scales, strict=True)]
record(["npu_all_gather_base_mm int8", product.cpu().equal(torch.cat(expected))])

DEVICE = torch.device("npu", RANK)
tensors = [full(RANK + part) for part in range(2)]
with _coalescing_manager(device=DEVICE):
    for tensor in tensors:
        dist.all_reduce(tensor)
record(["coalesced all_reduce", [tensor.tolist() for tensor in tensors]])
tensors = [empty(2 * SIZE) for _ in range(2)]
with _coalescing_manager(device=DEVICE, async_ops=True) as pending:
    for part, tensor in enumerate(tensors):
        dist.all_gather_into_tensor(tensor, full(RANK + part))
pending.wait()
record(["coalesced all_gather", [tensor.tolist() for tensor in tensors]])
tensors = [empty() for _ in range(2)]
with _coalescing_manager(device=DEVICE):
    for tensor in tensors:
        dist.reduce_scatter_tensor(tensor, torch.arange(2.0 * SIZE, device="npu"))
record(["coalesced reduce_scatter", [tensor.tolist() for tensor in tensors]])
with _coalescing_manager(device=DEVICE, async_ops=True) as pending:
    dist.isend(sent, other)
    dist.irecv(came, other)
pending.wait()
record(["coalesced messages", came.unique().tolist()])

# Statistics over the batches of all ranks.
every = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(0))
own = every[4 * RANK : 4 * RANK + 4].npu().requires_grad_()
whole = every.clone().requires_grad_()
norm, expected = torch.nn.SyncBatchNorm(3).npu(), torch.nn.BatchNorm1d(3)
norm(own).pow(3).sum().backward()
expected(whole).pow(3).sum().backward()
pairs = [(own.grad, whole.grad[4 * RANK : 4 * RANK + 4]), (norm.running_var, expected.running_var)]
record(["SyncBatchNorm", [torch.allclose(one.cpu(), other, atol=1e-5) for one, other in pairs]])

# The keys of the other rank come by a ring; steps over earlier keys have no mask.
query = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(1))
wanted = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
mesh = init_device_mesh("npu", (SIZE,))
parts = [query.npu() for _ in range(3)]
with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
    found = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
    (found,) = context_parallel_unshard(mesh, [found], [2])
record(["context_parallel", torch.allclose(found.cpu(), wanted, atol=1e-5)])
