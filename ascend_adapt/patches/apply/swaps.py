"""Swaps: which object has taken the place of which, for those who hold copies of the old one."""

from __future__ import annotations

from typing import Any

Swaps = dict[int, tuple[Any, Any]]
"""``id(old) -> (old, new)``; old is held so that its id stays its own."""


def chain(swaps: Swaps, later: Swaps) -> None:
    """Add ``later`` swaps to ``swaps``, whose new objects may have been swapped again."""
    for key, (old, new) in swaps.items():
        swaps[key] = (old, swapped(new, later))
    swaps.update(later)


def swapped(value: Any, swaps: Swaps) -> Any:
    """Return what has taken the place of ``value``, or ``value`` itself."""
    return swaps[id(value)][1] if id(value) in swaps else value
