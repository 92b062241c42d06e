"""float64 reductions over NPUs, which HCCL lacks, although many programs keep counts and totals in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .devices_of_torch import Done


@wrap(
    "torch.distributed.distributed_c10d:all_reduce",
    devices="npu",
    why="HCCL's all_reduce rejects float64",
    until="HCCL reduces float64",
    without="crash",
    symptom=Symptom(reason="the fault is in HCCL"),
)
def all_reduce_of_float64_on_npus(call: Call) -> Any:
    """Gather the tensors of all ranks as 64-bit integers, and reduce them on the host."""
    import torch
    import torch.distributed as dist

    tensor = call.args[0] if call.args else call.kwargs.get("tensor")
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float64 or tensor.device.type != "npu":
        return call.proceed()
    reductions: dict[Any, Callable[[Any], Any]] = {
        dist.ReduceOp.SUM: lambda all_: all_.sum(0),
        dist.ReduceOp.AVG: lambda all_: all_.mean(0),
        dist.ReduceOp.MAX: lambda all_: all_.amax(0),
        dist.ReduceOp.MIN: lambda all_: all_.amin(0),
    }
    reduce_ = next((reduce_ for known, reduce_ in reductions.items() if known == call["op"]), None)
    if reduce_ is None:
        return call.proceed()
    bits = tensor.detach().cpu().contiguous().view(torch.int64).to(tensor.device)
    gathered = [torch.empty_like(bits) for _ in range(dist.get_world_size(call["group"]))]
    dist.all_gather(gathered, bits, group=call["group"])
    everyone = torch.stack([one.cpu() for one in gathered]).view(torch.float64)
    with torch.no_grad():
        tensor.copy_(reduce_(everyone))
    return Done() if call["async_op"] else None
