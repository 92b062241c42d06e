"""Real targets altered in every way that a patch's kind promises to notice, in their own source."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

from ascend_adapt.patches import static, syntax
from ascend_adapt.patches.installation import SourceTree
from ascend_adapt.patches.spec import Patch
from ascend_adapt.testing import stand_in

Alteration = Callable[[Patch, syntax.Found], None]


def kinds(patch: Patch) -> list[str]:
    """Return the names of the alterations that the patch's kind promises to notice."""
    return list(stand_in.alterations(patch, stand_in.shape_of(patch)))


def altered(patch: Patch, kind: str, tree: SourceTree) -> dict[Path, str | None]:
    """Return files of ``tree`` and their texts with one alteration; None: the file is to be removed.

    An inherited target is altered in its base class, in every copy that ``tree`` has of that file.
    """
    source = tree.source_of(patch.target.module)
    assert source is not None, f"{patch.target.module} is not in {tree.root}"
    if kind == "module gone":
        return {source: None}
    if kind == "class gone":
        definitions = {source: _classes(syntax.parse_file(source), patch.target.source_path[:-1])}
    else:
        definitions = _definitions(patch, source, tree)
        if source in definitions and kind not in ("gone", "renamed"):
            definitions = {source: definitions[source]}  # it hides those of its bases
    texts: dict[Path, str | None] = {}
    for path, found in definitions.items():
        for one in found:
            _ALTERATIONS[kind](patch, one)
        texts[path] = ast.unparse(found[0].tree)
    return texts


def _definitions(patch: Patch, source: Path, tree: SourceTree) -> dict[Path, list[syntax.Found]]:
    """Every definition through which the target may be found: its own, else those of base classes in every copy."""
    found = static.definitions(patch, tree)
    assert found, f"{patch.target} is not in {tree.root}"
    *around, name = patch.target.source_path
    parsed = syntax.parse_file(source)
    own = syntax.find(parsed, (*around, name))
    definitions = {source: own} if own else {}
    classes = [one.node for one in _classes(parsed, tuple(around))] if around else []
    bases = {ast.unparse(base).rpartition(".")[2] for cls in classes for base in cls.bases}
    bases |= {one.around[-1].name for one in found if one.around and not own}
    folder = tree.root / patch.target.root if tree.installed else tree.root
    for path in sorted(folder.rglob("*.py")) if bases else ():
        text = path.read_bytes()
        for base in bases:
            if path != source and f"class {base}".encode() in text:
                there = syntax.find(syntax.parse_file(path), (base, name))
                definitions |= {path: there} if there else {}
    return definitions


def _classes(parsed: ast.Module, path: tuple[str, ...]) -> list[syntax.Found]:
    """The definitions of a class, without the assignments to its attributes."""
    return [one for one in syntax.find(parsed, path) if isinstance(one.node, ast.ClassDef)]


def _replace_in_scope(found: syntax.Found, *instead: ast.stmt) -> None:
    for scope in ast.walk(found.around[-1] if found.around else found.tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(scope, field, None)
            if isinstance(statements, list) and found.node in statements:
                at = statements.index(found.node)
                statements[at : at + 1] = [ast.fix_missing_locations(one) for one in instead]
                return


def _gone(patch: Patch, found: syntax.Found) -> None:
    _replace_in_scope(found, ast.Pass())


def _renamed(patch: Patch, found: syntax.Found) -> None:
    if isinstance(found.node, (ast.Assign, ast.AnnAssign)):
        (name,) = getattr(found.node, "targets", None) or [found.node.target]
        name.id += "_v2"
    else:
        found.node.name += "_v2"


def _class_renamed(patch: Patch, found: syntax.Found) -> None:
    """Also where the module itself uses it, so that it can be imported."""
    name = found.node.name
    found.node.name += "_v2"
    for node in ast.walk(found.tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id += "_v2"


def _a_value(patch: Patch, found: syntax.Found) -> None:
    _replace_in_scope(found, ast.parse(f"{found.node.name} = 1").body[0])


def _another_signature(patch: Patch, found: syntax.Found) -> None:
    found.node.args.kwonlyargs.append(ast.arg("a_keyword_of_no_one_else"))
    found.node.args.kw_defaults.append(None)


def _another_body(patch: Patch, found: syntax.Found) -> None:
    found.node.body.append(ast.parse("another_body = 1").body[0])


def _another_expression(patch: Patch, found: syntax.Found) -> None:
    old = syntax.parse_fragment(patch.old, "old")
    other = ast.parse("another_expression").body[0]
    syntax.substitute(found, old, other.value if isinstance(old, ast.expr) else other)


def _the_expression_twice(patch: Patch, found: syntax.Found) -> None:
    old = copy.deepcopy(syntax.parse_fragment(patch.old, "old"))
    found.node.body.append(ast.fix_missing_locations(ast.Expr(old) if isinstance(old, ast.expr) else old))


def _no_mapping(patch: Patch, found: syntax.Found) -> None:
    found.node.value = ast.Constant(1)


def _no_such_key(patch: Patch, found: syntax.Found) -> None:
    found.node.value = ast.Dict(keys=[], values=[])


_ALTERATIONS: dict[str, Alteration] = {
    "gone": _gone,
    "renamed": _renamed,
    "class gone": _class_renamed,
    "a value": _a_value,
    "another signature": _another_signature,
    "another body": _another_body,
    "another expression": _another_expression,
    "the expression twice": _the_expression_twice,
    "no mapping": _no_mapping,
    "no such key": _no_such_key,
}
