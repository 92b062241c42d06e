"""Body checks: a function must be upstream's own, not wrapped, and in a known version."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.apply import replacement, rewriting, third_party
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.judge.preconditions import body_drift

# Python's built-in descriptors.
_DESCRIPTORS = ("classmethod", "property", "staticmethod")


def check(patch: Patch, standing: Any) -> None:
    """Check that a function has one of the patch's bodies and no decorators except those in its source.

    Otherwise, the patch would drop a wrapper that was added at run time. Wraps of this package are allowed.

    Raises:
        PatchDrift: the body of ``standing``, a function or descriptor, differs, or its source cannot be read.
    """
    function = standing.fget if isinstance(standing, property) else getattr(standing, "__func__", standing)
    outermost, around = function, []
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        if not replacement.is_ours(function):
            around.append(function)
        function = inner
    if patch.original is not None and third_party.describe(function) != patch.original.dotted:
        observed = third_party.describe(outermost)
        raise PatchDrift(f"{patch.place} is {observed}, expected upstream's own {patch.original.dotted}")
    if not isinstance(function, FunctionType):
        raise PatchDrift(f"{patch.place} is a {type(function).__name__}, expected a function with a source")
    node = rewriting.definition(patch, function).node
    if (found := syntax.digest(node)) not in patch.bodies:
        raise body_drift(patch, found)
    written = [one for one in getattr(node, "decorator_list", ()) if getattr(one, "id", "") not in _DESCRIPTORS]
    if len(around) > len(written):
        raise PatchDrift(
            f"{patch.place} is wrapped by {third_party.describe(around[0])}, expected upstream's own function — add "
            "the wrapper after enable(), because the patch would drop it"
        )
