"""Digests of random number generator states, by which runs are compared before they draw random numbers."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def digests(device: torch.device) -> dict[str, str]:
    """Return a short hash of the state of each generator that training code draws from."""
    found = {"python": _hash(repr(random.getstate()).encode()), "torch": _of_tensor(torch.get_rng_state())}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *position = numpy.random.get_state()
        found["numpy"] = _hash(kind.encode() + keys.tobytes() + repr(position).encode())
    module: Any = getattr(torch, device.type, None)
    if device.type not in ("cpu", "meta") and hasattr(module, "get_rng_state"):
        found[f"torch.{device.type}"] = _of_tensor(module.get_rng_state())
    return found


def _of_tensor(state: torch.Tensor) -> str:
    return _hash(state.cpu().numpy().tobytes())


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
