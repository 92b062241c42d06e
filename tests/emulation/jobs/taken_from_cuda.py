"""A module of a code base that imports names of torch.cuda, and scripts a function, before an NPU is used."""

import torch
from torch.cuda import current_device
from torch.cuda.nvtx import range_push


@torch.jit.script
def scripted(x):
    return torch.tanh(x) * x


def where():
    return scripted(torch.ones(2, device=current_device())).device.type, torch.cuda.LongTensor([1]).device.type


def profiled():
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    torch.cuda.cudart().cudaProfilerStart()
    range_push("x")
    with torch.cuda.nvtx.range("y"):
        kept = torch.ones(3, device="cuda")
    torch.cuda.nvtx.range_pop()
    torch.cuda.cudart().cudaProfilerStop()
    actions = {trace["action"] for of_device in torch.cuda.memory._snapshot()["device_traces"] for trace in of_device}
    torch.cuda.memory._record_memory_history(None)
    return "alloc" in actions, kept.device.type
