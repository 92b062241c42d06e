"""The arguments of a call that a wrapper serves itself: a later upstream may have added some that it does not know."""

from __future__ import annotations

from typing import Any

from ascend_adapt.errors import PatchDrift


def known(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by their names, or None if ``names`` lack one, or one is given twice.

    Such a call is for upstream's own code.
    """
    if len(args) > len(names) or not kwargs.keys() <= set(names[len(args) :]):
        return None
    return {**dict(zip(names, args, strict=False)), **kwargs}


def expected(patch: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names, where upstream's own code would compute wrong numbers.

    Raises:
        PatchDrift: ``names`` lack one.
    """
    if (given := known(names, args, kwargs)) is None:
        told = ", ".join([f"{len(args)} by position", *sorted(kwargs)])
        raise PatchDrift(
            f"{patch}: its target was called with {told}, expected no others than {', '.join(names)} — the code base "
            f"has changed; --disable {patch} goes on with the numbers that it has without the patch"
        )
    return given
