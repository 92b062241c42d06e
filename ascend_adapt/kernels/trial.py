"""Trial run of a kernel, isolated from the user's computation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def aside(run: Callable[[], Result], device: Any) -> Result:
    """Call ``run`` in a new thread and return its result; its exceptions are raised here.

    Autocast, gradient and dispatch modes, and the saved-tensor hooks of activation checkpointing are thread-local, so
    they do not apply to the trial.

    Inside a backward pass on a device, ``run`` is called in this thread, with those modes disabled. This thread is then
    autograd's only thread for the device, so a backward pass in another thread would wait for it and deadlock.
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
        kind.synchronize(device)  # the new thread's current stream differs from the caller's
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
        torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is),  # of nested hooks, only the innermost are called
        _disable_current_modes(),
    ):
        result = run()
    getattr(torch, device.type).synchronize(device)
    return result
