"""Real targets altered in every way that a patch's kind promises to notice, in their own source."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import stand_in

Alteration = Callable[[Patch, syntax.Found], None]
Definitions = dict[Path, list[syntax.Found]]


def kinds(patch: Patch) -> list[str]:
    """Return the names of the alterations that the patch's kind promises to notice."""
    return list(stand_in.alterations(patch, stand_in.shape_of(patch)))


def altered(patch: Patch, kind: str, tree: SourceTree) -> dict[Path, str | None]:
    """Return files of ``tree`` and their texts with one alteration; None: the file is to be removed.

    An inherited target is altered in its base class, in every copy that ``tree`` has of that file.
    """
    source = tree.source_of(patch.target.module)
    assert source is not None, f"{patch.target.module} is not in {tree.root}"
    definitions: Definitions
    if kind == "module gone":
        return {source: None}
    if kind == "class gone":
        definitions = {source: _classes(syntax.parse_file(source), patch.target.source_path[:-1])}
    elif kind == "another body" and patch.original is not None:
        behind = tree.source_of(patch.original.module)
        assert behind is not None, f"{patch.original.module} is not in {tree.root}"
        definitions = {behind: syntax.find(syntax.parse_file(behind), patch.original.source_path)}
    else:
        definitions = _definitions(patch, source, tree, everywhere=kind in ("gone", "renamed"))
    texts: dict[Path, str | None] = {}
    for path, found in definitions.items():
        for one in found:
            _ALTERATIONS[kind](patch, one)
        texts[path] = ast.unparse(found[0].tree)
    return texts


def _definitions(patch: Patch, source: Path, tree: SourceTree, *, everywhere: bool) -> Definitions:
    """Every definition through which the target may be found: its own, which hides others unless ``everywhere``, and
    those of its base classes and of theirs, in every copy.
    """
    assert static.definitions(patch, tree), f"{patch.target} is not in {tree.root}"
    *around, name = patch.target.source_path
    parsed = {source: syntax.parse_file(source)}
    own = syntax.find(parsed[source], (*around, name))
    definitions = {source: own} if own else {}
    if not around or (own and not everywhere):
        return definitions
    folder = tree.root / patch.target.root if tree.installed else tree.root
    texts = {path: path.read_bytes() for path in sorted(folder.rglob("*.py"))}
    bases = _bases(_classes(parsed[source], tuple(around)))
    for base in bases:  # it grows
        for path, text in texts.items():
            if f"class {base}".encode() not in text:
                continue
            if path not in parsed:
                parsed[path] = syntax.parse_file(path)
            if there := syntax.find(parsed[path], (base, name)):
                definitions.setdefault(path, []).extend(there)
            bases += [one for one in _bases(_classes(parsed[path], (base,))) if one not in bases]
    return definitions


def _bases(classes: list[syntax.Found]) -> list[str]:
    names = (ast.unparse(base).rpartition(".")[2] for one in classes for base in one.node.bases)
    return list(dict.fromkeys(names))


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
    imported = _imported(patch, found)
    if imported is None or len(found.node.names) == 1:
        _replace_in_scope(found, ast.Pass())
    else:
        found.node.names.remove(imported)
    if not found.around:
        _say_instead(found, patch.target.source_path[-1], "None")


def _renamed(patch: Patch, found: syntax.Found) -> None:
    imported = _imported(patch, found)
    if imported is not None:
        imported.asname = f"{patch.target.source_path[-1]}_v2"
    elif isinstance(found.node, (ast.Assign, ast.AnnAssign)):
        (name,) = getattr(found.node, "targets", None) or [found.node.target]
        name.id += "_v2"
    else:
        found.node.name += "_v2"
    if not found.around:
        _say_instead(found, patch.target.source_path[-1], f"{patch.target.source_path[-1]}_v2")


def _say_instead(found: syntax.Found, name: str, instead: str) -> None:
    """Also where the module itself uses the name, so that it can be imported."""
    for node in ast.walk(found.tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = instead


def _imported(patch: Patch, found: syntax.Found) -> ast.alias | None:
    """What binds the target where an import does, among the names of that import."""
    names = found.node.names if isinstance(found.node, (ast.Import, ast.ImportFrom)) else []
    return next((one for one in names if (one.asname or one.name) == patch.target.source_path[-1]), None)


def _class_renamed(patch: Patch, found: syntax.Found) -> None:
    name = found.node.name
    found.node.name += "_v2"
    _say_instead(found, name, f"{name}_v2")


def _a_value(patch: Patch, found: syntax.Found) -> None:
    _replace_in_scope(found, ast.parse(f"{patch.target.source_path[-1]} = 1").body[0])


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


def _somebodys_function(patch: Patch, found: syntax.Found) -> None:
    name = ".".join(patch.target.source_path)
    found.tree.body.append(ast.parse(f"{name}[{patch.key!r}] = lambda *args, **kwargs: None").body[0])


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
    "somebody's function": _somebodys_function,
}
