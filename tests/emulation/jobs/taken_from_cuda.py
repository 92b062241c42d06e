"""A module of a code base: it takes names of torch.cuda, and scripts a function, before anybody asks for an NPU."""

import torch
from torch.cuda import current_device


@torch.jit.script
def scripted(x):
    return torch.tanh(x) * x


def where():
    return scripted(torch.ones(2, device=current_device())).device.type, torch.cuda.LongTensor([1]).device.type
