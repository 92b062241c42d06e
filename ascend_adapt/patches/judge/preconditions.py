"""Preconditions on a patch's target, which static judgement checks in source, and arming checks on objects."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ascend_adapt.errors import PatchDrift, PatchSpecError
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import NotNeeded, Patch


def rewrite_definition(patch: Patch, found: syntax.Found) -> None:
    """Rewrite a definition in its syntax tree.

    Raises:
        PatchDrift, NotNeeded: as in rewritten_code.
    """
    old = syntax.parse_fragment(patch.old, f"{patch} old=")
    new = syntax.parse_fragment(patch.new, f"{patch} new=")
    if isinstance(old, ast.expr) is not isinstance(new, ast.expr):
        raise PatchSpecError(f"{patch}: old= and new= must both be expressions or both be statements")
    if not syntax.occurrences(found.node, old) and len(syntax.occurrences(found.node, new)) == 1:
        raise NotNeeded(f"{patch.new!r} is already present")
    try:
        syntax.substitute(found, old, new)
    except PatchDrift as drift:
        raise PatchDrift(f"{patch.target}: {drift}") from None


def body_drift(patch: Patch, found: str) -> PatchDrift:
    """Return the error for a function whose body ``found`` is not one of ``patch.bodies``."""
    return PatchDrift(f"{patch.original or patch.target}: its body is {found}, expected {' or '.join(patch.bodies)}")


def refused_call(theirs: inspect.Signature, ours: inspect.Signature, bound: bool = False) -> str:
    """Return a call that ``theirs`` accepts and ``ours`` rejects, or ``""``. A ``bound`` self is passed by position."""
    by_position, by_name = [], []
    for index, parameter in enumerate(theirs.parameters.values()):
        if bound and index == 0 and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            parameter = parameter.replace(kind=parameter.POSITIONAL_ONLY)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_position.append(parameter)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            by_name.append(parameter)
    kinds = {parameter.kind for parameter in theirs.parameters.values()}
    keyword_only = [parameter for parameter in by_name if parameter.kind is parameter.KEYWORD_ONLY]
    required = [parameter for parameter in by_position if parameter.default is parameter.empty]
    needed_names = {parameter.name: None for parameter in keyword_only if parameter.default is parameter.empty}
    extra = (None,) * 64 if inspect.Parameter.VAR_POSITIONAL in kinds else ()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("every argument by position", (None,) * len(by_position) + extra, needed_names),
        ("only the required arguments", (None,) * len(required), needed_names),
    ]
    for parameter in by_name:
        before = [p for p in required if p.name != parameter.name]
        named = {p.name: None for p in before if p.kind is p.POSITIONAL_OR_KEYWORD}
        positional = (None,) * sum(p.kind is p.POSITIONAL_ONLY for p in before)
        calls.append((f"{parameter.name}=", positional, {**named, **needed_names, parameter.name: None}))
    if inspect.Parameter.VAR_KEYWORD in kinds:
        calls.append(("further keywords", (None,) * len(required), {**needed_names, "a_keyword_of_no_one": None}))
    for text, args, kwargs in calls:
        try:
            ours.bind(*args, **kwargs)
        except TypeError:
            return text
    return ""
