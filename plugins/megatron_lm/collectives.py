"""All-reduce of float64, which HCCL does not support and Megatron-LM uses for start times."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from .releases import HOST


@wrap(
    "torch.distributed.distributed_c10d:all_reduce",
    host=HOST,
    devices="npu",
    why="pretrain() reduces the start times of all ranks in float64, which HCCL does not support",
    until="torch_npu reduces float64",
    without="crash",
    symptom=Symptom(reason="the source archives of megatron-core do not contain megatron.training"),
)
def float64_all_reduce(call: Call) -> Any:
    """All-gather float64 values as int64 bits, and reduce them on each rank in rank order."""
    import torch

    given = call_arguments.known(("tensor", "op", "group", "async_op"), call)
    if given is None:
        return call.proceed()
    tensor, op = given["tensor"], given.get("op", torch.distributed.ReduceOp.SUM)
    if tensor.dtype != torch.float64 or tensor.device.type == "cpu" or given.get("async_op"):
        return call.proceed()
    if op not in (torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.MIN, torch.distributed.ReduceOp.MAX):
        return call.proceed()
    reduce_by_bits(tensor, op, given.get("group"))
    return None


def reduce_by_bits(tensor: Any, op: Any, group: Any) -> None:
    """Reduce a float64 tensor in place, in rank order."""
    import torch

    reduction = {
        torch.distributed.ReduceOp.SUM: torch.sum,
        torch.distributed.ReduceOp.MIN: torch.amin,
        torch.distributed.ReduceOp.MAX: torch.amax,
    }[op]
    bits = tensor.contiguous().view(torch.int64)
    of_ranks = [torch.empty_like(bits) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(of_ranks, bits, group=group)
    numbers = torch.stack([one.cpu().view(torch.float64) for one in of_ranks])
    tensor.copy_(reduction(numbers, dim=0))
