"""Patch: plain data, and the six functions that declare one.

A declaration changes nothing. A plugin returns its patches from ``register_patches()``, and the session applies them.

All six functions take these keyword arguments. Required: ``why`` (what breaks without the patch), ``until`` (when to
delete it), ``without`` (the effect of its absence: ``"crash"``, ``"wrong numbers"`` or ``"slower"``). Optional:
``requires`` (such as ``"deepspeed>=0.6,<0.11.2"``; all requirements must hold), ``devices`` (some of npu, cuda, cpu),
``host`` (a CodeBase, its name, or several), ``name`` (default: that of the function or variable), ``symptom`` (upstream
code that shows the fault; read by the conformance suite only).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from ascend_adapt.errors import PatchSpecError
from ascend_adapt.patches.declare.call import with_four_arguments
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.symptom import Symptom
from ascend_adapt.patches.declare.target import MISSING, Target
from ascend_adapt.patches.declare.terms import Terms, check_terms, hosts, parse_requirement, words

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from typing_extensions import Unpack


@dataclass(frozen=True, eq=False, kw_only=True)
class Patch:
    """Patch: one declared change to one target.

    An empty ``name`` stands for the name of the variable in the plugin. ``function`` is the wrapper, the replacement,
    or the function that fills a provided module. ``value`` is the object that replace, add or entry sets.
    """

    kind: str
    target: Target
    why: str
    until: str
    without: str
    name: str
    requires: tuple[Requirement, ...]
    devices: tuple[str, ...]
    hosts: tuple[CodeBase | str, ...]
    symptom: Symptom | None = None
    host_script: str | None = None
    unless: Callable[[Any], str] | None = None
    reversible: bool = True
    undo: Callable[[], object] | None = None
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
    seen_by: Callable[[dict[str, Any]], bool] | None = None

    @functools.cached_property
    def conditions(self) -> str:
        """All conditions of the patch, as one string."""
        parts = [str(requirement) for requirement in self.requires]
        if self.devices:
            parts.append("device " + " or ".join(self.devices))
        if self.hosts:
            parts.append("host " + " or ".join(map(str, self.hosts)))
        return ", ".join(parts)

    @property
    def place(self) -> str:
        """The place that the patch changes: the target, or one of its keys."""
        return f"{self.target}[{self.key!r}]" if self.kind == "entry" else str(self.target)

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class NotNeeded(Exception):
    """The target does not have the fault; the message explains why. Never raised to callers of this package."""


@dataclass(frozen=True)
class Registered:
    """A patch with its name, plugin and distribution."""

    patch: Patch
    name: str
    plugin: str
    distribution: str = ""

    def __str__(self) -> str:
        origin = f" of {self.distribution}" if self.distribution else ""
        return f"patch {self.name!r} (plugin {self.plugin!r}{origin})"

    @property
    def full_name(self) -> str:
        """``plugin.patch``."""
        return f"{self.plugin}.{self.name}"

    def is_named(self, names: Iterable[str]) -> bool:
        """Return whether ``names`` contains the patch, its plugin, or ``plugin.patch``."""
        own = (self.name, self.plugin, self.full_name)
        return any(name in own for name in names)

    def outcome(self, state: str, reason: str, found: str = "") -> Outcome:
        """Return the outcome of the patch."""
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
    undo: Callable[[], object] | None = None,
    **terms: Unpack[Terms],
) -> Callable[[Callable[..., Any]], Patch]:
    """Return a decorator that turns a wrapper into a patch that is called instead of the original.

    The wrapper is ``def f(call)``, which takes a Call, or ``def f(wrapped, instance, args, kwargs)``, which takes its
    parts. For a property, the getter is wrapped. ``unless`` receives the original and returns why no patch is needed,
    or ``""``. ``undo`` is called when the patch is reverted, if the wrapper changes more than its target.
    ``reversible=False`` marks a wrapper whose effects cannot be undone. A wrapper that reimplements the original gives
    ``bodies``, the digests of the known originals, as in ``replace``; any other body is drift.
    """
    known = words(bodies, f"wrap {target} bodies=")

    def declare(function: Callable[..., Any]) -> Patch:
        wrapper = with_four_arguments(function)
        more = {"unless": unless, "bodies": known, "reversible": reversible, "undo": undo}
        return _patch("wrap", target, terms, function=wrapper, **more)

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
    """Return a decorator whose function replaces the target. With ``value=``, return the patch.

    The function must accept every call that the original accepts. ``bodies`` are the digests
    (``ascend_adapt.patches.declare.syntax.digest``) of the originals that it is known to replace correctly; any other
    body is drift.
    """
    return _function_or_value(
        "replace", target, value, terms, unless=unless, bodies=words(bodies, f"replace {target} bodies=")
    )


@overload
def add(target: str, **terms: Unpack[Terms]) -> Callable[[Callable[..., Any]], Patch]: ...


@overload
def add(target: str, *, value: Any, **terms: Unpack[Terms]) -> Patch: ...


def add(target: str, *, value: Any = MISSING, **terms: Unpack[Terms]) -> Any:
    """Return a decorator whose function becomes a new attribute. With ``value=``, return the patch.

    An existing attribute is left alone (``not_needed``).
    """
    return _function_or_value("add", target, value, terms)


def rewrite(target: str, *, old: str, new: str, host_script: str | None = None, **terms: Unpack[Terms]) -> Patch:
    """Return a patch that replaces one expression or statement in a function with another.

    ``old`` is matched as a syntax tree, so formatting does not matter. It must occur exactly once. With
    ``host_script``, a file name, the target is ``__main__:function`` in the launched script.
    """
    reversible = host_script is None  # the effects of a script's code cannot be undone
    return _patch("rewrite", target, terms, old=old, new=new, host_script=host_script, reversible=reversible)


def provide(
    target: str,
    *,
    importers: Iterable[str] = (),
    instead: bool = False,
    seen_by: Callable[[dict[str, Any]], bool] | None = None,
    **terms: Unpack[Terms],
) -> Callable[[Callable[..., Any]], Patch]:
    """Return a decorator whose function ``def f(module)`` fills a module that does not exist otherwise.

    A real module always takes precedence. With ``host``, only this code base sees the provided module. With
    ``importers`` (module names), only these modules see it, and only during their own import, so that other code does
    not mistake it for the real module. With ``instead`` as well, they see it even if a real module exists; later
    imports get the real module. ``seen_by`` receives the globals of the importing code and returns whether that code
    sees the module.
    """
    lent_to = words(importers, f"provide {target} importers=")
    if instead and not lent_to:
        raise PatchSpecError(f"provide {target}: instead= would hide a real module from all code — add importers=")

    def declare(function: Callable[..., Any]) -> Patch:
        fields = {"importers": lent_to, "instead": instead, "seen_by": seen_by}
        return _patch("provide", target, terms, function=function, **fields)

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

    With ``present``, the key must exist and its value is replaced. Otherwise, the key must be missing and is added.
    ``original`` names upstream's function under this key (``"module:name"``), and ``bodies`` has its digests, as in
    ``replace``. Any other function, such as one that a script has set, and any other body are drift.
    """
    known = words(bodies, f"entry {target} bodies=")
    if bool(original) is not bool(known) or (original and not present):
        raise PatchSpecError(
            f"entry {target}: original= and bodies= describe a present key — pass both with present=True, or neither"
        )
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
    check_terms(terms, kind, subject)
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
        requires=tuple(parse_requirement(text, subject) for text in words(terms.get("requires", ()), subject)),
        devices=words(terms.get("devices", ()), subject),
        hosts=hosts(terms),
        symptom=terms.get("symptom"),
        **fields,
    )


# Modules that all code shares. A patch of one would affect code that has nothing to do with the plugin.
_UNTOUCHABLE = re.compile(r"(builtins|importlib|sys)(\..*)?:.*|torch(\._tensor)?:Tensor(\..*)?")


def _check_target(kind: str, place: Target, subject: str) -> None:
    if kind == "provide" and place.path:
        raise PatchSpecError(f"{subject}: expected a module name — provide makes modules, add makes attributes")
    if kind != "provide" and not place.path:
        raise PatchSpecError(f"{subject}: expected 'module:attribute' — add the attribute to {kind}")
    if _UNTOUCHABLE.fullmatch(str(place)):
        raise PatchSpecError(f"{subject}: is never patched — patch the code that uses it")


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
    import ast  # imported here, because scripts that only call enable() do not need it

    from ascend_adapt.patches.declare import syntax

    old, new = syntax.parse_fragment(old_text, f"{subject} old="), syntax.parse_fragment(new_text, f"{subject} new=")
    if isinstance(old, ast.expr) is not isinstance(new, ast.expr):
        raise PatchSpecError(
            f"{subject}: old= and new= are an expression and a statement — pass two expressions or two statements"
        )
    if ast.dump(old) == ast.dump(new):
        raise PatchSpecError(f"{subject}: old= and new= are the same, expected a change — correct new=")


def _check_arguments(kind: str, function: Any, subject: str) -> None:
    arguments = {"wrap": ("wrapped", "instance", "args", "kwargs"), "provide": ("module",)}.get(kind, ())
    try:
        if arguments:
            inspect.signature(function).bind(*arguments)
    except TypeError as error:
        takes = f"({', '.join(arguments)}){' or (call)' if kind == 'wrap' else ''}"
        raise PatchSpecError(f"{subject}: decorates a function that does not take {takes}: {error}") from error
