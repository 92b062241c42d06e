"""Random numbers of the emulated device, determined by torch_npu's generators, which advance as on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# torch_npu advances its Philox counter by 10 for each operator, rounded up to a multiple of 4 (op-plugin@517f2e7).
_OFFSET = 12


def advance(generator: Any) -> tuple[int, int]:
    """Return the (seed, offset) of a device generator, and advance the generator as one operator does."""
    with torch.npu.device(generator.device):  # else it would begin to use the current one
        state = generator.get_state()
        words = state.view(torch.int64)
        seed, offset = (int(word) for word in words)
        words[1] += _OFFSET
        generator.set_state(state)
    return seed, offset


def host_seed(seed: int, offset: int) -> int:
    """Return the seed of the CPU generator for a (seed, offset) of the device."""
    return (seed * 0x9E3779B97F4A7C15 + offset) & (2**63 - 1)


@contextmanager
def drawn_from(generator: Any, device: torch.device) -> Iterator[None]:
    """Context manager in which CPU kernels draw numbers that a device generator determines; the generator advances.

    The same state gives the same numbers, so recomputing a layer from a saved state works as on a device. The numbers
    differ from those of an NPU, and of a CPU with this seed. ``generator`` None is the device's default generator.
    """
    if generator is None:
        generator = torch.npu.default_generators[device.index]
    elif generator.device.type != "npu":
        raise RuntimeError(
            f"Expected a 'npu' device type for generator but found '{generator.device.type}'"  # The message is torch's.
        )
    seed = host_seed(*advance(generator))
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
