"""The names of tensors' types, as code that was written for a GPU compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CudaTypeNames(TorchFunctionMode):  # type: ignore[misc]
    """Answers ``x.type()`` with the name that it has on a GPU; all other calls go their way."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func is torch.Tensor.type and isinstance(answer, str):
            return f"torch.cuda.{answer.rpartition('.')[2]}"
        return answer
