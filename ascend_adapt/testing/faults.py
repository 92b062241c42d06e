"""Faults: decides whether a source tree has the fault of a patch, from code and never from version numbers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.declare.symptom import Symptom
from ascend_adapt.patches.declare.target import MISSING, Target
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree

PRESENT, ABSENT, NOT_JUDGED = "present", "absent", "not judged"


@dataclass(frozen=True)
class Fault:
    """Result for one fault. ``state`` is present, absent or not judged, and ``reason`` explains the state."""

    state: str
    reason: str


def look_for(patch: Patch, tree: SourceTree) -> Fault:
    """Return whether ``tree`` has the fault of ``patch``.

    A declared symptom decides. Otherwise, the fault of a rewrite is its old expression, and a wrap has a fault if
    ``unless`` returns "". If a patch adds or provides a name for another package, the fault is that the tree uses the
    name unguarded.
    """
    is_foreign = tree.folder(patch.target.root) is None
    if patch.kind in ("add", "provide") and is_foreign:
        used = _of_a_foreign_name(patch, tree)
        if used.state == ABSENT or patch.symptom is None:
            return used
    if patch.symptom is not None:
        return _of_a_symptom(patch, patch.symptom, tree)
    if is_foreign and patch.host_script is None:
        return Fault(NOT_JUDGED, f"{patch.target.root} is not in this tree, and no symptom is declared")
    try:
        judge = _JUDGES[patch.kind]
    except KeyError:
        return Fault(NOT_JUDGED, "no symptom is declared")
    try:
        return judge(patch, tree)
    except PatchDrift as drift:
        return Fault(ABSENT, str(drift).replace(f"{tree.root}", "the tree"))


def _of_a_symptom(patch: Patch, symptom: Symptom, tree: SourceTree) -> Fault:
    if symptom.reason:
        return Fault(NOT_JUDGED, symptom.reason)
    place = symptom.place or patch.target
    try:
        nodes = _nodes(place, tree)
    except PatchDrift:
        nodes = []
    for fragment in symptom.fragments:
        wanted = syntax.parse_fragment(fragment, f"{patch} symptom=")
        if any(syntax.occurrences(node, wanted) for node in nodes):
            return Fault(PRESENT, f"{fragment} is in {place}")
    return Fault(ABSENT, f"{' or '.join(symptom.fragments)} is not in {place}" if nodes else f"{place} is missing")


def _nodes(place: Target, tree: SourceTree) -> list[ast.AST]:
    if not place.path:
        source = tree.source_of(place.module)
        return [] if source is None else [syntax.parse_file(source)]
    return [found.node for found in static.find(place.module, place.source_path, tree)]


def _of_a_rewrite(patch: Patch, tree: SourceTree) -> Fault:
    old = syntax.parse_fragment(patch.old, f"{patch} old=")
    times = sum(len(syntax.occurrences(found.node, old)) for found in static.definitions(patch, tree))
    return Fault(PRESENT if times else ABSENT, f"the old expression occurs {times} times")


def _of_an_addition(patch: Patch, tree: SourceTree) -> Fault:
    if static.definitions(patch, tree):
        return Fault(ABSENT, f"{patch.target} exists")
    around = patch.target.path[:-1]
    if around and not static.find(patch.target.module, around, tree):
        return Fault(ABSENT, f"{'.'.join(around)} is not in {patch.target.module}")
    return Fault(PRESENT, f"{patch.target} is missing")


def _of_a_wrap(patch: Patch, tree: SourceTree) -> Fault:
    if patch.unless is None:
        return Fault(NOT_JUDGED, "no symptom is declared")
    functions = [one.node for one in static.definitions(patch, tree) if isinstance(one.node, syntax.Definition)]
    if len(functions) != 1:
        return Fault(NOT_JUDGED, f"{patch.target} has {len(functions)} definitions")
    seen = patch.unless(_with_signature(static.signature_of(functions[0])))
    return Fault(ABSENT, seen) if seen else Fault(PRESENT, "unless= returns no reason")


def _of_an_entry(patch: Patch, tree: SourceTree) -> Fault:
    for found in static.definitions(patch, tree):
        value = getattr(found.node, "value", None)
        if isinstance(value, ast.Dict):
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            has_key = patch.key in keys
            return Fault(
                PRESENT if has_key is patch.present else ABSENT, f"the key {'exists' if has_key else 'is missing'}"
            )
    return Fault(NOT_JUDGED, f"{patch.target} is not a literal mapping, and no symptom is declared")


def _of_a_foreign_name(patch: Patch, tree: SourceTree) -> Fault:
    """Judge a name in another package. The fault is present if the tree uses the name."""
    word = (patch.target.path or patch.target.module.split("."))[-1].encode()
    packages = [path for path in sorted(tree.root.iterdir()) if (path / "__init__.py").is_file()]
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            if word in path.read_bytes() and _uses(path, patch.target):
                return Fault(PRESENT, f"{path.relative_to(tree.root)} uses {patch.target}")
    return Fault(ABSENT, f"nothing uses {patch.target}")


def _uses(path: Path, target: Target) -> bool:
    try:
        parsed = syntax.parse_file(path)
    except PatchDrift:
        return False  # a template or Python 2 code, which cannot run here
    return _uses_in(parsed, ".".join((target.module, *target.path)), target)


def _uses_in(node: ast.AST, dotted: str, target: Target) -> bool:
    if isinstance(node, ast.Try) and any(_catches_its_absence(handler) for handler in node.handlers):
        rest: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        return any(_uses_in(child, dotted, target) for child in rest)
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return dotted in names or (not target.path and node.module == target.module)
    if isinstance(node, ast.Import):
        return not target.path and any(alias.name == target.module for alias in node.names)
    if isinstance(node, ast.Attribute) and target.path and node.attr == target.path[-1]:
        return ast.unparse(node) == dotted
    return any(_uses_in(child, dotted, target) for child in ast.iter_child_nodes(node))


def _catches_its_absence(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"})


def _with_signature(signature: inspect.Signature) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


_JUDGES: dict[str, Callable[[Patch, SourceTree], Fault]] = {
    "rewrite": _of_a_rewrite,
    "add": _of_an_addition,
    "wrap": _of_a_wrap,
    "replace": _of_a_wrap,
    "entry": _of_an_entry,
}


def declaration(patch: Patch) -> str:
    """Return, as text, the parts of a declaration on which facts about a tree depend; versions are left out."""
    symptom = patch.symptom and (patch.symptom.fragments, patch.symptom.at, patch.symptom.reason)
    key = "" if patch.key is MISSING else repr(patch.key)
    unless = getattr(patch.unless, "__code__", None)
    names = unless and unless.co_names
    parts = (patch.kind, str(patch.target), patch.old, patch.new, key, patch.present, symptom, names)
    return repr(parts if patch.original is None else (*parts, str(patch.original)))
