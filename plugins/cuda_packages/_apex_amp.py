"""apex.amp for programs that import but disable it: opt_level O0, or enabled=False. Source: apex's documentation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def initialize(models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **options: Any) -> Any:
    """Return models and optimizers unchanged.

    Raises:
        RuntimeError: a level of mixed precision is requested.
    """
    if enabled and opt_level != "O0":
        raise RuntimeError(
            f"apex.amp: opt_level is {opt_level!r}, expected 'O0': apex's mixed precision needs CUDA — turn off the "
            "program's option for apex, or use torch.autocast and torch.amp.GradScaler"
        )
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss: Any, optimizers: Any, *args: Any, **options: Any) -> Iterator[Any]:
    """Return a context manager that yields the loss unchanged."""
    yield loss


def master_params(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizer's parameters."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    """Return an empty state, because the loss is not scaled."""
    return {}


def load_state_dict(state: dict[str, Any]) -> None:
    """Ignore the state, because the loss is not scaled."""


def half_function(function: Any) -> Any:
    """Return the function unchanged."""
    return function


float_function = promote_function = half_function
