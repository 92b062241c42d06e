"""What an optimizer's step changes, as it is handed to the recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Update:
    """One parameter in an optimizer's step."""

    name: str
    group: int
    weight: torch.Tensor
    gradient: torch.Tensor | None
    state: Callable[[], Mapping[str, Any]]
    """Returns its state; read after the step, which may create it."""
