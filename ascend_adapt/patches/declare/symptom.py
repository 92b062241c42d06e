"""Symptom: upstream code that shows the fault of a patch. Only the conformance suite reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.target import Target


@dataclass(frozen=True, init=False)
class Symptom:
    """Symptom of a fault: expressions or statements, each of which shows the fault if the source of ``at`` contains it.

    ``at`` is a module, class, function or assignment, by default the target of the patch. Without fragments, ``reason``
    explains why no syntax shows the fault, and the suite reports the fault as not judged.
    """

    fragments: tuple[str, ...]
    at: str
    reason: str

    def __init__(self, *fragments: str, at: str = "", reason: str = "") -> None:
        from ascend_adapt.patches.declare import syntax

        if bool(fragments) is bool(reason.strip()):
            raise PatchSpecError(
                "symptom: code and reason=: neither or both given, expected one — give code that shows the fault, or "
                "reason= why no code does"
            )
        for fragment in fragments:
            syntax.parse_fragment(fragment, "symptom")
        if at:
            Target.parse(at)
        for name, value in (("fragments", fragments), ("at", at), ("reason", reason)):
            object.__setattr__(self, name, value)

    @property
    def place(self) -> Target | None:
        """Where to search, or None for the target of the patch."""
        return Target.parse(self.at) if self.at else None
