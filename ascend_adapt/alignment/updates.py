"""Interface for recording optimizers that are not subclasses of torch.optim.Optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Update:
    """Update of one parameter in an optimizer step."""

    name: str
    group: int
    weight: torch.Tensor
    gradient: torch.Tensor | None
    state: Callable[[], Mapping[str, Any]]
    """Returns the parameter's optimizer state. It is called after the step, which may create the state."""


class StepRecorder(Protocol):
    """Records the steps of optimizers that are not subclasses of torch.optim.Optimizer."""

    def optimizer_step(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> AbstractContextManager[None]:
        """Record the optimizer step made inside this context.

        Args:
            optimizer: any object that identifies the optimizer, the same in each step.
            kind: the name of the optimizer, for display.
            groups: hyperparameters of each parameter group.
            updates: a function that returns the optimizer's parameters with their names in the model.
        """


_current: StepRecorder | None = None


def current() -> StepRecorder | None:
    """Return the step recorder of this process, or None."""
    return _current


def set_current(recorder: StepRecorder | None) -> None:
    """Set the recorder that ``current`` returns."""
    global _current
    _current = recorder
