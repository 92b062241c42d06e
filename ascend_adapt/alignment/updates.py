"""Recording of optimizers that are not a torch.optim.Optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Update:
    """One parameter in an optimizer's step."""

    name: str
    group: int
    weight: torch.Tensor
    gradient: torch.Tensor | None
    state: Callable[[], Mapping[str, Any]]
    """Returns the parameter's state; called after the step, which may create it."""


class StepRecorder(Protocol):
    """Records the steps of an optimizer that is not a torch.optim.Optimizer."""

    def optimizer_step(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> AbstractContextManager[None]:
        """Record the optimizer step made inside this context.

        Args:
            optimizer: an object that is the same in each step.
            kind: its name.
            groups: hyperparameters of each parameter group.
            updates: a function that returns its parameters with their names in the model.
        """


_current: StepRecorder | None = None


def current() -> StepRecorder | None:
    """Return the recorder of this process, or None."""
    return _current


def set_current(recorder: StepRecorder | None) -> None:
    """Set the recorder that ``current`` returns."""
    global _current
    _current = recorder
