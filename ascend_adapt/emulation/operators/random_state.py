"""Random bits of the emulated device: replayable from a seed and an offset, as the hardware's Philox is.

The bits are not the hardware's. What is kept is the contract: one seed and offset give one mask, and every draw moves
the generator of its device on, so that torch_npu's own seeds, saved states and activation checkpoints work.
"""

from __future__ import annotations

import torch

INCREMENT = 10
"""How far one mask moves the offset (op-plugin@517f2e7 opapi/FlashAttentionKernelNpuOpApi.cpp dropout_gen_mask)."""


def draw() -> tuple[int, int]:
    """Return (seed, offset) of the current device's generator, and move it on."""
    import torch_npu

    generator = torch_npu.npu.default_generators[torch_npu.npu.current_device()]
    seed, offset = generator.initial_seed(), generator.get_offset()
    # Offsets are multiples of 4, as in torch's own Philox.
    generator.set_offset(offset + (INCREMENT + 3) // 4 * 4)
    return seed, offset


def keep_mask(count: int, keep_prob: float, seed: int, offset: int) -> torch.Tensor:
    """Return ``count`` bools, True with probability ``keep_prob``."""
    generator = torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + offset) % (1 << 63))
    # float32 on both sides, so that keep_prob and 1 - (1 - keep_prob) give one mask.
    return torch.rand(count, generator=generator) < torch.tensor(keep_prob, dtype=torch.float32)


def packed(mask: torch.Tensor) -> torch.Tensor:
    """Return bools as uint8, eight a byte, the lowest bit first, padded to 128 bits."""
    bits = torch.zeros((mask.numel() + 127) // 128 * 128, dtype=torch.uint8)
    bits[: mask.numel()] = mask.reshape(-1)
    return (bits.reshape(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpacked(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first ``count`` bits of a packed mask as bools."""
    bits = (mask.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.reshape(-1)[:count].bool()
