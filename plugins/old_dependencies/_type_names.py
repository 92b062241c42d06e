"""The names of tensors' types, as code that was written for one device compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class TypeNames(TorchFunctionMode):
    """Answers ``x.type()`` with the name that it has on ``device``; all other calls go their way."""

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
