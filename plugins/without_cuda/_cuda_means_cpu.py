"""Process-wide torch function mode that keeps tensors sent to or created on "cuda" in host memory."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

_TO_CUDA = torch.Tensor.cuda
_TO = torch.Tensor.to
# Functions that are no-ops without a device.
_NOTHING = (_TO_CUDA, torch.Tensor.pin_memory)
# torch.compile traces this module. torch.device returns different classes to different callers, so guards would fail.
_DEVICE = torch.device
_CPU = _DEVICE("cpu")


def _not_overridden(function: Any) -> Any:
    """Return torch's function without its check for function modes."""
    names = {
        **function.__globals__,
        "has_torch_function": lambda *_: False,
        "has_torch_function_unary": lambda _: False,
    }
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_backward = _not_overridden(torch.autograd.backward)


def _backward_of_tensor(
    tensor: torch.Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    _backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


_BACKWARD = {
    torch.Tensor.backward: _backward_of_tensor,
    torch.autograd.backward: _backward,
    torch.autograd.grad: _not_overridden(torch.autograd.grad),
}


class CudaMeansCpu(TorchFunctionMode):  # type: ignore[misc]
    """Redirects calls for a CUDA device to the CPU; all other calls are unchanged.

    ``x.cuda()`` returns ``x``, as for a tensor that is already on the device. Without CUDA, every such call would fail,
    so device-aware code never makes such a call.
    """

    _left = True

    def enter(self) -> None:
        """Enter this mode; if it is still on the stack, activate it again."""
        self._left = False
        if self not in _get_current_function_mode_stack():
            self.__enter__()

    def leave(self) -> None:
        """Leave this mode; if others have entered modes later, it stays on the stack, inactive."""
        self._left = True
        if _get_current_function_mode_stack()[-1:] == [self]:
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._left:
            return func(*args, **kwargs)
        if func in _BACKWARD:
            # Activation recomputation and hooks run CUDA code in the backward pass, so the mode must be active there.
            with self:
                return _BACKWARD[func](*args, **kwargs)
        if func in _NOTHING:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.type and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": on_host(kwargs["device"])}
        if any(isinstance(arg, _DEVICE) for arg in args):
            args = tuple(on_host(arg) if isinstance(arg, _DEVICE) else arg for arg in args)
        elif func is _TO and len(args) > 1:
            args = (args[0], on_host(args[1]), *args[2:])
        return func(*args, **kwargs)


CUDA_MEANS_CPU = CudaMeansCpu()


def on_host(device: Any) -> Any:
    """Return the CPU for a CUDA device given as torch.device, string or index; return other values unchanged."""
    if isinstance(device, _DEVICE):
        return _CPU if device.type == "cuda" else device
    if isinstance(device, str):
        return _CPU if device.partition(":")[0] == "cuda" else device
    return _CPU if isinstance(device, int) and not isinstance(device, bool) else device
