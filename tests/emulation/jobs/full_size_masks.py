"""Causal masks at full size, made from tensors that are too large to hold values unless they are masks."""

import resource

import torch
from record import record

from ascend_adapt.kernels.masks import is_causal

SIDE = 2048  # 16 MiB of float32


def ones(device="npu"):
    return torch.ones(SIDE, SIDE, device=device)


def below(diagonal):
    return torch.tril(diagonal) < 0.5


def overwritten_on_the_host():
    mask = ones("cpu")
    mask[:, 0] = 0.0  # a view that is small enough to be written
    return mask


columns = torch.arange(1, device="npu")
unknown = torch.empty(SIDE, SIDE, device="npu")
masks = {
    "causal: of ones": below(torch.ones(1, 1, SIDE, SIDE, device="npu")),
    "causal: converted": torch.triu(ones(), diagonal=1).bool(),
    "causal: of a full tensor": torch.full((SIDE, SIDE), -1e4, dtype=torch.float16, device="npu").triu(1) < 0,
    "causal: in place": torch.ones_like(unknown).tril_() == 0,
    "causal: of the host": below(ones("cpu")).npu(),
    "causal: converted on the host": torch.triu(ones("cpu"), diagonal=1).bool().npu(),
    "other: one diagonal more": torch.triu(ones(), diagonal=2).bool(),
    "other: of unknown values": below(unknown),
    "other: overwritten by unknown values": below(ones().copy_(unknown)),
    "other: one column overwritten": below(ones().index_fill_(1, columns, 0.0)),
    "other: one column overwritten on the host": below(overwritten_on_the_host()).npu(),
    "other: overwritten after it was cut": below(ones().tril_().mul_(unknown)),
}
for name, mask in masks.items():
    record([name, is_causal(mask, SIDE, SIDE)])

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
states = [torch.zeros_like(unknown) for _ in range(64)]  # 1 GiB
updated = [state.add_(1.0) * 2.0 for state in states]
record(["bytes of states", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10])
