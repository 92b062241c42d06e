"""Arguments of a wrapped call by name, checked against those that the wrapper knows: upstream may add more."""

from __future__ import annotations

from typing import Any

from ascend_adapt.errors import PatchDrift


def known(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by name, or None if one is not in ``names`` or is given twice.

    The caller then passes the call on to upstream's own code.
    """
    if len(args) > len(names) or not kwargs.keys() <= set(names[len(args) :]):
        return None
    return {**dict(zip(names, args, strict=False)), **kwargs}


def expected(patch: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, for a call that upstream's own code would answer with wrong numbers.

    Raises:
        PatchDrift: one is not in ``names`` or is given twice.
    """
    if (given := known(names, args, kwargs)) is None:
        observed = ", ".join([f"{len(args)} by position", *sorted(kwargs)])
        raise PatchDrift(
            f"{patch}: its target was called with {observed}, expected only {', '.join(names)} — the code base "
            f"has changed; --disable {patch} continues with the numbers of the unpatched code"
        )
    return given
