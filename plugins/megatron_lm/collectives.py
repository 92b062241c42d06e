"""A sum over ranks that HCCL refuses: float64 numbers, in which Megatron-LM tells times."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap

from .. import call_arguments
from .releases import HOST


@wrap(
    "torch.distributed.distributed_c10d:all_reduce",
    host=HOST,
    devices="npu",
    why="pretrain() looks for the earliest start of all ranks in float64, which HCCL does not reduce",
    until="torch_npu reduces float64",
    without="crash",
    symptom=Symptom(reason="the source archives of megatron-core do not hold megatron.training"),
)
def all_reduce_of_float64(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gather float64 numbers as their bits, and reduce them on each rank, in the order of ranks."""
    import torch

    given = call_arguments.known(("tensor", "op", "group", "async_op"), args, kwargs)
    if given is None:
        return wrapped(*args, **kwargs)
    tensor, op = given["tensor"], given.get("op", torch.distributed.ReduceOp.SUM)
    if tensor.dtype != torch.float64 or tensor.device.type == "cpu" or given.get("async_op"):
        return wrapped(*args, **kwargs)
    if op not in (torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.MIN, torch.distributed.ReduceOp.MAX):
        return wrapped(*args, **kwargs)
    reduce_by_bits(tensor, op, given.get("group"))
    return None


def reduce_by_bits(tensor: Any, op: Any, group: Any) -> None:
    """Reduce float64 numbers in place, exactly as a reduction in the order of ranks does."""
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
