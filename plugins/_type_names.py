"""Makes tensors report the type names of another device, for code that compares these names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class TypeNames(TorchFunctionMode):  # type: ignore[misc]
    """Function mode in which ``x.type()`` returns the type name on ``device``; all other calls are unchanged."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func is torch.Tensor.type and isinstance(answer, str):
            return f"torch.{self.device}.{answer.rpartition('.')[2]}"
        return answer
