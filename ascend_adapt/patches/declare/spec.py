"""A patch as plain data, and the six words that declare one.

Declaring changes nothing: a plugin returns its patches from ``register_patches()``, and only the session applies them.

All six words share these keyword arguments. Always: ``why`` (what breaks without it), ``until`` (when to delete it),
``without`` (``"crash"``, ``"wrong numbers"`` or ``"slower"``: what happens if it is absent). If needed: ``requires``
(``"deepspeed>=0.6,<0.11.2"``, all must hold), ``devices`` (of npu, cuda, cpu), ``host`` (a Host or its name, or
several), ``name`` (else the function's or the variable's), ``symptom`` (what in upstream's source shows the fault; only
tests ask).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, overload

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.code_base import Host
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.symptom import Symptom
from ascend_adapt.patches.declare.target import MISSING, Target

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from typing_extensions import Required, Unpack

CONSEQUENCES = ("crash", "wrong numbers", "slower")
DEVICES = ("npu", "cuda", "cpu")


class Terms(TypedDict, total=False):
    """The keyword arguments that every kind takes."""

    why: Required[str]
    until: Required[str]
    without: Required[str]
    requires: Iterable[str]
    devices: Iterable[str]
    host: Host | str | Iterable[Host | str] | None
    name: str
    symptom: Symptom


@dataclass(frozen=True, eq=False, kw_only=True)
class Patch:
    """One declared change to one target.

    ``name`` may be empty: the plugin's own name for the object is taken then. ``function`` is the wrapper, the
    replacement, or what fills a provided module; ``value`` the object that replace, add or entry puts in place.
    """

    kind: str
    target: Target
    why: str
    until: str
    without: str
    name: str
    requires: tuple[Requirement, ...]
    devices: tuple[str, ...]
    hosts: tuple[Host | str, ...]
    symptom: Symptom | None = None
    host_script: str | None = None
    unless: Callable[[Any], str] | None = None
    reversible: bool = True
    function: Callable[..., Any] | None = None
    value: Any = MISSING
    old: str = ""
    new: str = ""
    key: Any = MISSING
    present: bool = False
    bodies: tuple[str, ...] = ()
    original: Target | None = None
    importers: tuple[str, ...] = ()
    instead: bool = False

    @functools.cached_property
    def conditions(self) -> str:
        """All that must hold for it to apply, as one text."""
        parts = [str(requirement) for requirement in self.requires]
        if self.devices:
            parts.append("device " + " or ".join(self.devices))
        if self.hosts:
            parts.append("host " + " or ".join(map(str, self.hosts)))
        return ", ".join(parts)

    @property
    def place(self) -> str:
        """What it changes: the target, or one key there."""
        return f"{self.target}[{self.key!r}]" if self.kind == "entry" else str(self.target)

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class NotNeeded(Exception):
    """The target already behaves; the text says how that was seen. Never leaves this package."""


@dataclass(frozen=True)
class Registered:
    """A patch together with who brought it: what the session works on."""

    patch: Patch
    name: str
    plugin: str
    distribution: str = ""

    def __str__(self) -> str:
        origin = f" of {self.distribution}" if self.distribution else ""
        return f"patch {self.name!r} (plugin {self.plugin!r}{origin})"

    def is_named(self, names: Iterable[str]) -> bool:
        """Return whether one of ``names`` is that of the patch, of its plugin, or ``plugin.patch``."""
        own = (self.name, self.plugin, f"{self.plugin}.{self.name}")
        return any(name in own for name in names)

    def outcome(self, state: str, reason: str, found: str = "") -> Outcome:
        """Return what became of the patch, as a value."""
        return Outcome(
            patch=self.name,
            plugin=self.plugin,
            target=str(self.patch.target),
            state=state,
            reason=reason,
            requires=self.patch.conditions,
            found=found,
            reversible=self.patch.reversible,
            why=self.patch.why,
            until=self.patch.until,
            without=self.patch.without,
        )


def wrap(
    target: str,
    *,
    unless: Callable[[Any], str] | None = None,
    bodies: Iterable[str] = (),
    reversible: bool = True,
    **terms: Unpack[Terms],
) -> Callable[[Callable[..., Any]], Patch]:
    """Return a decorator that turns ``def f(wrapped, instance, args, kwargs)`` into a patch that is called instead.

    ``wrapped`` is the original, bound if the target is a method; ``instance`` the object or class, else None. Of a
    property, the getter is wrapped. ``unless`` gets the original and returns why it already behaves, or ``""``.
    ``reversible=False`` is for a wrapper whose effects stay. ``bodies`` are for one that computes what the original
    would: the digests of the originals it was read off, as in ``replace``; another body is drift.
    """
    known = _words(bodies, f"wrap {target} bodies=")

    def declare(function: Callable[..., Any]) -> Patch:
        return _patch("wrap", target, terms, function=function, unless=unless, bodies=known, reversible=reversible)

    return declare


@overload
def replace(
    target: str, *, unless: Callable[[Any], str] | None = ..., bodies: Iterable[str] = ..., **terms: Unpack[Terms]
) -> Callable[[Callable[..., Any]], Patch]: ...


@overload
def replace(
    target: str,
    *,
    value: Any,
    unless: Callable[[Any], str] | None = ...,
    bodies: Iterable[str] = ...,
    **terms: Unpack[Terms],
) -> Patch: ...


def replace(
    target: str,
    *,
    value: Any = MISSING,
    unless: Callable[[Any], str] | None = None,
    bodies: Iterable[str] = (),
    **terms: Unpack[Terms],
) -> Any:
    """Return a decorator whose function stands for the target; with ``value=``, the patch itself.

    The function must accept every call that the original accepts. ``bodies`` are the digests of the originals it is
    known to stand for (``ascend_adapt.patches.declare.syntax.digest``); another body is drift.
    """
    return _function_or_value(
        "replace", target, value, terms, unless=unless, bodies=_words(bodies, f"replace {target} bodies=")
    )


@overload
def add(target: str, **terms: Unpack[Terms]) -> Callable[[Callable[..., Any]], Patch]: ...


@overload
def add(target: str, *, value: Any, **terms: Unpack[Terms]) -> Patch: ...


def add(target: str, *, value: Any = MISSING, **terms: Unpack[Terms]) -> Any:
    """Return a decorator whose function becomes a new attribute; with ``value=``, the patch itself.

    An attribute that is already there is left alone (``not_needed``).
    """
    return _function_or_value("add", target, value, terms)


def rewrite(target: str, *, old: str, new: str, host_script: str | None = None, **terms: Unpack[Terms]) -> Patch:
    """Return a patch that swaps one expression or statement of a function for another.

    ``old`` is matched as a syntax tree (spelling and line breaks do not matter) and must occur exactly once. With
    ``host_script`` (a file name) the target is ``__main__:function`` of the launched script.
    """
    reversible = host_script is None  # what a script has run cannot be run again
    return _patch("rewrite", target, terms, old=old, new=new, host_script=host_script, reversible=reversible)


def provide(
    target: str, *, importers: Iterable[str] = (), instead: bool = False, **terms: Unpack[Terms]
) -> Callable[[Callable[..., Any]], Patch]:
    """Return a decorator whose function ``def f(module)`` fills a module that cannot be imported otherwise.

    A real module always wins. With ``host``, only code of such a host sees the provided one. With ``importers``, names
    of modules, only these see it, and only while they are imported: nobody else can take it for the real one. With
    ``instead`` as well, they see it also where there is a real one, which everybody imports later.
    """
    lent_to = _words(importers, f"provide {target} importers=")
    if instead and not lent_to:
        raise PatchSpecError(f"provide {target}: instead= would hide a real module — say from which importers=")

    def declare(function: Callable[..., Any]) -> Patch:
        return _patch("provide", target, terms, function=function, importers=lent_to, instead=instead)

    return declare


def entry(
    target: str,
    key: Any,
    value: Any,
    *,
    present: bool,
    original: str = "",
    bodies: Iterable[str] = (),
    **terms: Unpack[Terms],
) -> Patch:
    """Return a patch that sets one key of the mapping at ``target``.

    ``present`` says whether the key must be there already (it is replaced) or must be missing (it is added).
    ``original`` names the function that upstream has there (``"module:name"``), and ``bodies`` its digests, as in
    ``replace``: another function, such as one that a script has put there, or another body, is drift.
    """
    known = _words(bodies, f"entry {target} bodies=")
    if bool(original) is not bool(known) or (original and not present):
        raise PatchSpecError(f"entry {target}: original= and bodies= are of what is present — give both, or neither")
    own = Target.parse(original) if original else None
    return _patch("entry", target, terms, key=key, value=value, present=present, original=own, bodies=known)


def _function_or_value(kind: str, target: str, value: Any, terms: Terms, **fields: Any) -> Any:
    if value is not MISSING:
        return _patch(kind, target, terms, value=value, **fields)

    def declare(function: Callable[..., Any]) -> Patch:
        return _patch(kind, target, terms, function=function, **fields)

    return declare


def _patch(kind: str, target: str, terms: Terms, **fields: Any) -> Patch:
    place = Target.parse(target)
    subject = f"{kind} {place}"
    _check_target(kind, place, subject)
    _check_terms(terms, kind, subject)
    _check_fields(kind, fields, place, subject)
    function = fields.get("function")
    own_name = getattr(function, "__name__", "")
    name = terms.get("name", "") or ("" if own_name == "<lambda>" else own_name)
    return Patch(
        kind=kind,
        target=place,
        why=terms["why"],
        until=terms["until"],
        without=terms["without"],
        name=name,
        requires=tuple(_parse_requirement(text, subject) for text in _words(terms.get("requires", ()), subject)),
        devices=_words(terms.get("devices", ()), subject),
        hosts=_hosts(terms),
        symptom=terms.get("symptom"),
        **fields,
    )


# The ground that everybody stands on: a patch there would reach code that has nothing to do with its plugin.
_UNTOUCHABLE = re.compile(r"(builtins|importlib|sys)(\..*)?:.*|torch(\._tensor)?:Tensor(\..*)?")


def _check_target(kind: str, place: Target, subject: str) -> None:
    if kind == "provide" and place.path:
        raise PatchSpecError(f"{subject}: expected a module name — provide makes modules, add makes attributes")
    if kind != "provide" and not place.path:
        raise PatchSpecError(f"{subject}: expected 'module:attribute' — name what to {kind} in the module")
    if _UNTOUCHABLE.fullmatch(str(place)):
        raise PatchSpecError(f"{subject}: is never patched — patch the code that uses it")


def _check_terms(terms: Terms, kind: str, subject: str) -> None:
    unknown = sorted(set(terms) - set(Terms.__annotations__))
    if unknown:
        raise PatchSpecError(f"{subject}: {unknown[0]}= is not an argument of {kind} — see docs/patches.md")
    for term in ("why", "until"):
        text = terms.get(term)
        if not isinstance(text, str) or not text.strip():
            raise PatchSpecError(f"{subject}: {term}= is {text!r}, expected a sentence — every patch says it")
    if terms.get("without") not in CONSEQUENCES:
        expected = ", ".join(repr(word) for word in CONSEQUENCES)
        raise PatchSpecError(f"{subject}: without= is {terms.get('without')!r} — say one of {expected}")
    if not set(_words(terms.get("devices", ()), subject)) <= set(DEVICES):
        raise PatchSpecError(f"{subject}: devices= is {terms.get('devices')!r} — name some of {', '.join(DEVICES)}")
    if not all(isinstance(host, (str, Host)) for host in _hosts(terms)):
        raise PatchSpecError(f"{subject}: host= is {terms.get('host')!r} — give a Host or the name of one, or several")
    if not isinstance(terms.get("symptom"), (Symptom, type(None))):
        raise PatchSpecError(f"{subject}: symptom= is {terms.get('symptom')!r} — give a Symptom(...)")
    name = terms.get("name", "")
    if not isinstance(name, str) or name != name.strip() or "," in name:
        raise PatchSpecError(f"{subject}: name= is {name!r} — give one that fits a list with commas")


def _check_fields(kind: str, fields: dict[str, Any], place: Target, subject: str) -> None:
    if fields.get("host_script") and place.module != "__main__":
        raise PatchSpecError(f"{subject}: host_script= needs a target '__main__:function'")
    if "function" in fields:
        function: Any = fields["function"]
        descriptors = (classmethod, staticmethod, property) if kind == "add" else ()
        if not isinstance(function, descriptors) and (not callable(function) or isinstance(function, type)):
            raise PatchSpecError(f"{subject}: decorates {function!r}, expected a function")
        _check_arguments(kind, function, subject)
    if kind == "rewrite":
        _check_fragments(fields["old"], fields["new"], subject)


def _check_fragments(old_text: str, new_text: str, subject: str) -> None:
    import ast  # scripts that only call enable() need not pay for it

    from ascend_adapt.patches.declare import syntax

    old, new = syntax.parse_fragment(old_text, f"{subject} old="), syntax.parse_fragment(new_text, f"{subject} new=")
    if isinstance(old, ast.expr) is not isinstance(new, ast.expr):
        raise PatchSpecError(f"{subject}: old= and new= are an expression and a statement — give two of one sort")
    if ast.dump(old) == ast.dump(new):
        raise PatchSpecError(f"{subject}: old= and new= are the same — say what is to change")


def _check_arguments(kind: str, function: Any, subject: str) -> None:
    arguments = {"wrap": ("wrapped", "instance", "args", "kwargs"), "provide": ("module",)}.get(kind, ())
    try:
        if arguments:
            inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise PatchSpecError(f"{subject}: decorates a function without ({', '.join(arguments)}): {error}") from error


def _hosts(terms: Terms) -> tuple[Host | str, ...]:
    given = terms.get("host")
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _words(value: Iterable[str], subject: str) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(word, str) for word in words):
        raise PatchSpecError(f"{subject}: got {value!r} — give a text or a list of texts")
    return words


def _parse_requirement(text: str, subject: str) -> Requirement:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise PatchSpecError(
            f"{subject}: requires={text!r}, {str(error).splitlines()[0]} — say 'name>=1,<2'"
        ) from error
    if requirement.marker or requirement.url or requirement.extras:
        raise PatchSpecError(f"{subject}: requires={text!r} has a marker, address or extra — say only 'name>=1,<2'")
    return requirement
