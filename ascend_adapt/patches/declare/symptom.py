"""What in upstream's source shows that the fault a patch is for is there: asked by the conformance suite only."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.target import Target


@dataclass(frozen=True, init=False)
class Symptom:
    """Expressions or statements, any of which shows the fault where it stands in the source of ``at``.

    ``at`` is a module, class, function or assignment, by default the patch's own target. Without fragments, ``reason``
    says why no syntax shows the fault; the suite then counts it as not judged.
    """

    fragments: tuple[str, ...]
    at: str
    reason: str

    def __init__(self, *fragments: str, at: str = "", reason: str = "") -> None:
        from ascend_adapt.patches.declare import syntax

        if bool(fragments) is bool(reason.strip()):
            raise PatchSpecError("symptom: give what shows the fault, or reason= why nothing in the source does")
        for fragment in fragments:
            syntax.parse_fragment(fragment, "symptom")
        if at:
            Target.parse(at)
        for name, value in (("fragments", fragments), ("at", at), ("reason", reason)):
            object.__setattr__(self, name, value)

    @property
    def place(self) -> Target | None:
        """Where to look, or None for the patch's own target."""
        return Target.parse(self.at) if self.at else None
