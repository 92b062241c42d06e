"""Schema gate: checks whether the installed torch_npu has the operator that a kernel backend was written for.

torch_npu's registered schemas differ from its yaml: they have ``input`` for the yaml's ``self``, and one list, ``out``,
for several out arguments (seen in 2.1.0.post17 to 2.14.0). Both forms count as equal.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any


def installed(operator: str) -> str:
    """Return the schema that torch_npu registers for an operator such as ``npu_swiglu`` or ``npu_apply_adam_w.out``.

    Returns "" if torch_npu has no such operator or is not imported.
    """
    import torch

    base, _, overload = operator.partition(".")
    packet = getattr(torch.ops.npu, base, None)
    found = getattr(packet, overload or "default", None)
    return "" if found is None else str(found._schema).removeprefix("npu::")


def gate(written_for: str, uses: Collection[str] | None = None) -> str:
    """Return "" if the installed operator matches the schema text, else the reason to skip the backend."""
    operator = written_for.partition("(")[0]
    found = installed(operator)
    if not found:
        return f"{operator}: the installed torch_npu has no such operator"
    return difference(written_for, found, None if uses is None else frozenset(uses))


@functools.cache
def difference(written_for: str, found: str, uses: frozenset[str] | None = None) -> str:
    """Return "" if two schemas are equal, else how the second differs, on one line.

    Compares names, order, types, defaults, keyword-only arguments and returns. ``uses`` lists the arguments that a call
    passes, by either name of the first. Then other arguments may be missing, and new arguments may exist if they have a
    default.
    """
    ours, theirs = _Schema(written_for), _Schema(found)
    differences = [*_arguments(ours, theirs, uses), *_returns(ours, theirs)]
    return f"{ours.name}: {'; '.join(differences)}" if differences else ""


class _Schema:
    """A parsed schema in the form in which torch_npu registers it."""

    def __init__(self, text: str) -> None:
        import torch

        parsed = torch._C.parse_schema(text)
        self.name = text.partition("(")[0]
        self.returns = [str(one.type) for one in parsed.returns]
        self.arguments = [_Argument(one) for one in parsed.arguments]
        written = [one for one in parsed.arguments if one.kwarg_only and one.alias_info and one.alias_info.is_write]
        if len(written) > 1:
            names = {one.name for one in written}
            self.arguments = [one for one in self.arguments if one.name not in names]
            self.arguments.append(_Argument.of("out", f"List[{written[0].type}]"))
        self.by_name = {one.name: (place, one) for place, one in enumerate(self.arguments)}


class _Argument:
    """One argument of a schema. ``default`` is the text of its default, or None."""

    def __init__(self, parsed: Any) -> None:
        self.name = known_as(parsed.name)
        # The type as written, because int and ScalarType are the same type to the dispatcher, but not to callers.
        self.type = str(parsed.real_type)
        self.keyword = parsed.kwarg_only
        self.default = repr(parsed.default_value) if parsed.has_default_value() else None

    @classmethod
    def of(cls, name: str, type_: str) -> _Argument:
        argument = cls.__new__(cls)
        argument.name, argument.type, argument.keyword, argument.default = name, type_, True, None
        return argument


def known_as(name: str) -> str:
    """Return the registered name of an argument in torch_npu's yaml: ``input`` for ``self``, other names unchanged."""
    return "input" if name == "self" else name


def _arguments(ours: _Schema, theirs: _Schema, uses: frozenset[str] | None) -> list[str]:
    given = None if uses is None else {known_as(name) for name in uses}
    differences = []
    for place, argument in enumerate(ours.arguments):
        used = given is None or argument.name in given
        if argument.name not in theirs.by_name:
            if used:
                differences.append(f"has no argument {argument.name}")
            continue
        where, other = theirs.by_name[argument.name]
        if other.default != argument.default and (given is None or not used):
            differences.append(f"{argument.name} is {_shown(other)} by default, not {_shown(argument)}")
        if not used:
            continue
        if other.type != argument.type:
            differences.append(f"{argument.name} is {other.type}, not {argument.type}")
        if other.keyword and not argument.keyword:
            differences.append(f"{argument.name} is keyword-only")
        elif not argument.keyword and where != place:
            differences.append(f"{argument.name} is argument {where + 1}, not {place + 1}")
        elif argument.keyword and not other.keyword and given is None:
            differences.append(f"{argument.name} is also positional")
    for name, (_, other) in theirs.by_name.items():
        if name not in ours.by_name and (given is None or other.default is None):
            differences.append(f"has a new argument {name}" + ("" if other.default is None else f"={other.default}"))
    return differences


def _returns(ours: _Schema, theirs: _Schema) -> list[str]:
    if len(ours.returns) != len(theirs.returns):
        return [f"returns {len(theirs.returns)} values, not {len(ours.returns)}"]
    if ours.returns != theirs.returns:
        return [f"returns ({', '.join(theirs.returns)}), not ({', '.join(ours.returns)})"]
    return []


def _shown(argument: _Argument) -> str:
    return "not given" if argument.default is None else argument.default
