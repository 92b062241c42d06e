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

    Within a backward pass on a device ``run`` stays in this thread, and all of that is put aside: autograd has one
    thread for each device, this one, which the backward pass of another thread would wait for while we wait for it.
    """
    import torch

    if device.type != "cpu" and torch._C._current_graph_task_id() != -1:
        return _within_backward(run, device)

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


def _within_backward(run: Callable[[], Result], device: Any) -> Result:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def as_it_is(tensor: Any) -> Any:
        return tensor

    with (
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is),  # of several only the innermost are asked
        _disable_current_modes(),
    ):
        result = run()
    getattr(torch, device.type).synchronize(device)
    return result
