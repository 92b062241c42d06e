"""Finds out whether a device has kernels that fuse the operations around a linear layer, such as bias and norm.

Without such kernels, plain torch is faster than their references, and torch.compile fuses plain operators itself.
"""

from __future__ import annotations

from ascend_adapt.kernels import dispatch
from ascend_adapt.kernels.operation import Backend

FUSED = ("add_norm", "bias_dropout_add", "split_qkv")


def fuses(device_type: str) -> bool:
    """Return whether the fused kernels have a backend other than the reference on a kind of device."""
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
