"""Whether a device has the kernels that fuse what surrounds a linear layer: its bias, residual add, norm, activation.

Where it has none, plain torch is faster than their references, and torch.compile fuses plain operators by itself.
"""

from __future__ import annotations

from ascend_adapt.kernels import dispatch
from ascend_adapt.kernels.operation import Backend

FUSED = ("add_norm", "split_qkv")


def fuses(device_type: str) -> bool:
    """Return whether the fused kernels have a backend of their own on a kind of device."""
    for name in FUSED:
        own = [one for one in dispatch.kernels()[name].backends if device_type in one.devices]
        if not any(_can_be_imported(one) for one in own):
            return False
    return True


def _can_be_imported(backend: Backend) -> bool:
    try:
        backend.implementation()
    except ImportError:
        return False
    return True
