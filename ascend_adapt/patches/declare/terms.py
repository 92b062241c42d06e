"""Keyword arguments that every kind of patch takes, and their checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.symptom import Symptom

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from typing_extensions import Required

CONSEQUENCES = ("crash", "wrong numbers", "slower")
DEVICES = ("npu", "cuda", "cpu")


class Terms(TypedDict, total=False):
    """Keyword arguments of every kind of patch."""

    why: Required[str]
    until: Required[str]
    without: Required[str]
    requires: Iterable[str]
    devices: Iterable[str]
    host: CodeBase | str | Iterable[CodeBase | str] | None
    name: str
    symptom: Symptom


def check_terms(terms: Terms, kind: str, subject: str) -> None:
    """Check the keyword arguments of a patch, and raise PatchSpecError if one is invalid."""
    unknown = sorted(set(terms) - set(Terms.__annotations__))
    if unknown:
        raise PatchSpecError(f"{subject}: {unknown[0]}= is not an argument of {kind} — see docs/patches.md")
    for term in ("why", "until"):
        text = terms.get(term)
        if not isinstance(text, str) or not text.strip():
            raise PatchSpecError(f"{subject}: {term}= is {text!r}, expected a sentence — every patch needs it")
    if terms.get("without") not in CONSEQUENCES:
        expected = ", ".join(repr(word) for word in CONSEQUENCES)
        raise PatchSpecError(
            f"{subject}: without= is {terms.get('without')!r}, expected one of {expected} — correct it"
        )
    if not set(words(terms.get("devices", ()), subject)) <= set(DEVICES):
        raise PatchSpecError(
            f"{subject}: devices= is {terms.get('devices')!r}, expected some of {', '.join(DEVICES)} — correct it"
        )
    if not all(isinstance(host, (str, CodeBase)) for host in hosts(terms)):
        raise PatchSpecError(f"{subject}: host= is {terms.get('host')!r} — pass a CodeBase, its name, or several")
    if not isinstance(terms.get("symptom"), (Symptom, type(None))):
        raise PatchSpecError(f"{subject}: symptom= is {terms.get('symptom')!r} — pass a Symptom(...)")
    name = terms.get("name", "")
    if not isinstance(name, str) or name != name.strip() or "," in name:
        raise PatchSpecError(f"{subject}: name= is {name!r} — pass a name without commas or surrounding blanks")


def hosts(terms: Terms) -> tuple[CodeBase | str, ...]:
    """Return the code bases that ``host`` lists."""
    given = terms.get("host")
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def words(value: Iterable[str], subject: str) -> tuple[str, ...]:
    """Return one or several strings as a tuple. Raises PatchSpecError for anything else."""
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(word, str) for word in found):
        raise PatchSpecError(f"{subject}: got {value!r} — pass a string or a list of strings")
    return found


def parse_requirement(text: str, subject: str) -> Requirement:
    """Return a parsed requirement. Raises PatchSpecError if it is invalid, or has a marker, URL or extra."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise PatchSpecError(
            f"{subject}: requires={text!r}, {str(error).splitlines()[0]} — write 'name>=1,<2'"
        ) from error
    if requirement.marker or requirement.url or requirement.extras:
        raise PatchSpecError(f"{subject}: requires={text!r} has a marker, URL or extra — write only 'name>=1,<2'")
    return requirement
