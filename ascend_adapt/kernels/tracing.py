"""Detects tensors without readable values: under FakeTensorMode, make_fx and torch.func transforms, and on meta."""

from __future__ import annotations

from typing import Any


def has_values(tensor: Any) -> bool:
    """Return whether a tensor's values may be read on the host. Under tracing, values are missing or placeholders."""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    return not tensor.is_meta and not is_abstract(tensor)


def is_transformed() -> bool:
    """Return whether the call is inside a torch.func transform: vmap, grad, jvp or functionalize."""
    import torch

    return torch._C._functorch.maybe_current_level() is not None


def is_observed(torch: Any) -> bool:
    """Return whether torch.func or a dispatch mode is active. If not, only fake tensors are abstract."""
    return torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0


def is_abstract(tensor: Any) -> bool:
    """Return whether only torch operators accept a tensor: it is fake, recorded by make_fx, or transformed."""
    import torch

    if is_transformed():
        return True
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not torch._C._len_torch_dispatch_stack():
        return False
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = _get_current_dispatch_mode_stack()
    return detect_fake_mode([tensor]) is not None or any(isinstance(mode, ProxyTorchDispatchMode) for mode in modes)
