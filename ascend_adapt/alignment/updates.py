"""What an optimizer that is none of torch's reports to the recorder of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ascend_adapt.alignment.recorder import Recorder

_current: Recorder | None = None


@dataclass(frozen=True)
class Update:
    """One parameter in an optimizer's step."""

    name: str
    group: int
    weight: torch.Tensor
    gradient: torch.Tensor | None
    state: Callable[[], Mapping[str, Any]]
    """Returns its state; read after the step, which may create it."""


def current() -> Recorder | None:
    """Return the recorder of this process, if it is being recorded."""
    return _current


def set_current(recorder: Recorder | None) -> None:
    """Name the recorder that ``current`` returns."""
    global _current
    _current = recorder
