"""A trial run beside the user's own computation, which must not notice it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def aside(run: Callable[[], Result], device: Any) -> Result:
    """Return what ``run`` returns, from a thread of its own; what it raises is raised here.

    Autocast, modes of gradients and dispatch, and the hooks that activation checkpointing puts on saved tensors belong
    to a thread: none of them sees the trial, and none of them changes it.
    """
    import torch

    kind = getattr(torch, device.type, None) if device.type != "cpu" else None

    def within() -> Result:
        if kind is not None:
            kind.set_device(device)
        result = run()
        if kind is not None:
            kind.synchronize(device)
        return result

    if kind is not None:
        kind.synchronize(device)  # its streams are not those of this thread
    with ThreadPoolExecutor(1, thread_name_prefix="ascend_adapt-trial") as pool:
        return pool.submit(within).result()
