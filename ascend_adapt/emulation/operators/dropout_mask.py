"""Dropout masks: random bits that can be reproduced from a seed and an offset, as with the hardware's Philox generator.

The bits differ from the hardware's bits, but the contract is the same: a seed and an offset determine the mask, and
every draw advances the generator of its device. So torch_npu's seeds, saved RNG states and activation checkpointing
work.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation import random
from ascend_adapt.emulation.full_size import values


def draw() -> tuple[int, int]:
    """Return (seed, offset) of the current device's generator, and advance it."""
    return random.advance(torch.npu.default_generators[torch.npu.current_device()])


def keep_mask(count: int, keep_prob: float, seed: int, offset: int) -> torch.Tensor:
    """Return ``count`` bools, True with probability ``keep_prob``."""
    if values.only_shapes():
        return torch.empty(count, dtype=torch.bool)
    generator = torch.Generator("cpu").manual_seed(random.host_seed(seed, offset))
    # float32 on both sides, so that keep_prob and 1 - (1 - keep_prob) give the same mask.
    return torch.rand(count, generator=generator) < torch.tensor(keep_prob, dtype=torch.float32)


def packed(mask: torch.Tensor, multiple: int = 128) -> torch.Tensor:
    """Pack bools into uint8, eight per byte, lowest bit first, padded to a multiple of this number of bits."""
    bits = torch.zeros(-(-mask.numel() // multiple) * multiple, dtype=torch.uint8)
    bits[: mask.numel()] = mask.reshape(-1)
    return (bits.reshape(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpacked(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack the first ``count`` bits of a packed mask to bools."""
    bits = (mask.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.reshape(-1)[:count].bool()
