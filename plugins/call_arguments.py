"""Arguments of a wrapped call, by name. The wrapper states the names that it knows, because upstream may add more."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call
from ascend_adapt.errors import PatchDrift


def known(names: tuple[str, ...], call: Call) -> dict[str, Any] | None:
    """Return the arguments by name, or None if an argument is not in ``names`` or is given twice.

    If the result is None, the wrapper proceeds with upstream's code.
    """
    if len(call.args) > len(names) or not call.kwargs.keys() <= set(names[len(call.args) :]):
        return None
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def expected(patch: str, names: tuple[str, ...], call: Call) -> dict[str, Any]:
    """Return the arguments by name; raise an error if that fails, because upstream's code would compute wrong results.

    Raises:
        PatchDrift: an argument is not in ``names`` or is given twice.
    """
    if (given := known(names, call)) is None:
        observed = ", ".join([f"{len(call.args)} by position", *sorted(call.kwargs)])
        raise PatchDrift(
            f"{patch}: its target was called with {observed}, expected only {', '.join(names)} — the code base "
            f"has changed; --disable {patch} continues with the results of the unpatched code"
        )
    return given
