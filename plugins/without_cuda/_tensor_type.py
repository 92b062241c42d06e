"""Support for torch.Tensor(2, 3) in CUDA code after set_default_tensor_type(torch.cuda.HalfTensor), on an NPU.

The constructor makes a tensor of the default type. torch has no such type for an NPU, and the constructor ignores the
default device.
"""

from __future__ import annotations

from typing import Any

import torch

from .callers import CUDA, Callers
from .views import View

_view: View | None = None


class _TensorType:
    """torch.Tensor, except that a call creates a tensor on the NPU; a subclass of it is a subclass of torch.Tensor."""

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        # Without sizes, torch.Tensor() has no elements, but torch.empty(()) has one.
        if sizes and all(isinstance(one, int) for one in sizes) and not kwargs:
            return torch.empty(tuple(sizes), device="npu")
        return torch.Tensor(*args, **kwargs).to(kwargs.get("device", "npu"))

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (torch.Tensor,)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, torch.Tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.Tensor, name)

    def __eq__(self, other: Any) -> bool:
        return other is self or other is torch.Tensor

    def __hash__(self) -> int:
        return hash(torch.Tensor)

    def __or__(self, other: Any) -> Any:
        return torch.Tensor | other

    def __ror__(self, other: Any) -> Any:
        return other | torch.Tensor


def set_on_npu(callers: Callers, is_on_npu: bool) -> None:
    """Make the torch.Tensor that CUDA code sees create tensors on the NPU, or else on the host again."""
    global _view
    if is_on_npu and _view is None:
        _view = View(torch, callers, {CUDA: {"Tensor": _TensorType()}})
    elif not is_on_npu and _view is not None:
        _view.undo()
        _view = None
