"""Registers kernels that override those of torch_npu."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

_TAKES_OVERRIDE = "allow_override" in inspect.signature(torch.library.Library.impl).parameters


def override(library: Any, operator: str, kernel: Callable[..., Any], dispatch_key: str) -> None:
    """Register ``kernel`` for the operator and ``dispatch_key``; override any other kernel."""
    if _TAKES_OVERRIDE:
        library.impl(operator, kernel, dispatch_key, allow_override=True)
        return
    # Before torch 2.8, the dispatcher uses the newest kernel, but torch.library rejects a second Python kernel.
    torch.library._impls.discard(f"{library.ns}/{operator}/{dispatch_key}")
    library.impl(operator, kernel, dispatch_key)


def own_kernel(operator: str, dispatch_key: str) -> Callable[..., Any] | None:
    """Return torch_npu's kernel, which ``override`` would replace; None if this torch cannot return it."""
    if not hasattr(torch.library, "get_kernel"):
        return None
    own = torch.library.get_kernel(operator, dispatch_key)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.__members__[dispatch_key])
    return lambda *args, **kwargs: own.call_boxed(keys, *args, **kwargs)
