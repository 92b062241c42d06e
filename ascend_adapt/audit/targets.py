"""Targets in source trees: finds out whether a dotted path exists, following imports and base classes."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.judge.installation import SourceTree

EXISTS, MISSING, UNKNOWN = "exists", "missing", "unknown"
# difflib's ratio above which a name is probably the new name of the missing one.
_CLOSE = 0.88


@dataclass(frozen=True)
class Verdict:
    """Whether a target exists. ``definition`` is the target's function or class, if the source shows it."""

    state: str
    reason: str = ""
    definition: syntax.Definition | ast.ClassDef | None = None
    is_method: bool = False


# Signs of a module that may define names dynamically.
_OPEN = re.compile(r"import \*|__getattr__|_LazyModule|\bglobals\(\)")


@cache
def _text(file: Path) -> str:
    return file.read_text(errors="replace")


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file, read once.

    Raises:
        PatchDrift: as syntax.parse_file.
    """
    return syntax.parse_file(file)


class Targets:
    """Source trees in which targets are looked up: the given folders, then the installed packages."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._given = [SourceTree(folder) for folder in folders]
        self._known: dict[str, Verdict] = {}

    def find(self, dotted: str) -> Verdict:
        """Return whether ``package.module.Class.name`` exists."""
        if dotted not in self._known:
            self._known[dotted] = Verdict(UNKNOWN, f"{dotted} is imported circularly")  # the verdict during the lookup
            try:
                self._known[dotted] = self._look_up(dotted)
            except PatchDrift as error:
                self._known[dotted] = Verdict(UNKNOWN, str(error))
        return self._known[dotted]

    def _tree(self, root: str) -> SourceTree | None:
        for tree in self._given:
            if tree.folder(root) is not None:
                return tree
        folder = probe.root_folder(root)
        return SourceTree(folder) if folder is not None and folder.is_dir() else None

    def _look_up(self, dotted: str) -> Verdict:
        parts = dotted.split(".")
        tree = self._tree(parts[0])
        if tree is None:
            return Verdict(UNKNOWN, f"{parts[0]} was not found")
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            if tree.source_of(module) is not None or _is_namespace(tree.root.joinpath(*parts[:end])):
                return self._member(tree, module, parts[end:])
        return Verdict(UNKNOWN, f"{parts[0]} has no Python source")

    def _member(self, tree: SourceTree, module: str, path: Sequence[str]) -> Verdict:
        source = tree.source_of(module)
        if not path:
            return Verdict(EXISTS)
        if any(tree.root.joinpath(*module.split(".")).glob(f"{path[0]}.*so")):
            return Verdict(UNKNOWN, f"{module}.{path[0]} is compiled")
        if source is None:
            return Verdict(MISSING, f"{module} has no {path[0]}")
        text = _text(source)
        if path[0] not in text and not _OPEN.search(text):
            return Verdict(MISSING, f"{module} has no {path[0]}{_similar(parsed(source), path[0])}")
        tree_of_module = parsed(source)
        package = module if source.name == "__init__.py" else module.rpartition(".")[0]
        verdicts = [
            self._bound(tree, module, package, found.node, path) for found in syntax.find(tree_of_module, (path[0],))
        ]
        if not verdicts and (syntax.find(tree_of_module, ("__getattr__",)) or "_LazyModule" in text):
            return Verdict(UNKNOWN, f"{module} defines its names at run time")
        verdicts += self._from_stars(tree_of_module, package, path) if not verdicts else []
        if verdicts:
            return _surest(verdicts)
        return Verdict(MISSING, f"{module} has no {path[0]}{_similar(tree_of_module, path[0])}")

    def _from_stars(self, parsed: ast.Module, package: str, path: Sequence[str]) -> list[Verdict]:
        stars = [
            _home(node, package)
            for node in syntax.statements(parsed)
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        ]
        homes = [home for home in stars if self.find(f"{home}.{path[0]}").state != MISSING]
        return [self.find(".".join([home, *path])) for home in homes]

    def _bound(self, tree: SourceTree, module: str, package: str, node: ast.stmt, path: Sequence[str]) -> Verdict:
        """Return the verdict on the object that one statement binds to ``path[0]``."""
        rest = list(path[1:])
        if isinstance(node, ast.ImportFrom):
            name = next(alias.name for alias in node.names if (alias.asname or alias.name) == path[0])
            home = _home(node, package)
            if self._tree(home.partition(".")[0]) is None:
                return Verdict(EXISTS if not rest else UNKNOWN, f"imported from {home}, which was not found")
            return self.find(".".join([home, name, *rest]))
        if isinstance(node, ast.Import):
            name = next(alias.name if alias.asname else path[0] for alias in node.names if _bound_by(alias) == path[0])
            return self.find(".".join([name, *rest])) if rest else Verdict(EXISTS)
        if isinstance(node, ast.ClassDef) and rest:
            return self._of_class(module, package, node, rest)
        if isinstance(node, ast.ClassDef):
            return Verdict(EXISTS, definition=node)
        if isinstance(node, syntax.Definition):
            return Verdict(UNKNOWN if rest else EXISTS, f"{module}.{path[0]} is a function" if rest else "", node)
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)) and rest:
            return self.find(".".join([module, ast.unparse(node.value), *rest]))
        return Verdict(UNKNOWN, f"{module}.{path[0]} is defined at run time") if rest else Verdict(EXISTS)

    def _of_class(self, module: str, package: str, cls: ast.ClassDef, path: Sequence[str]) -> Verdict:
        for found in syntax.find(ast.Module([cls], []), (cls.name, path[0])):
            if isinstance(found.node, syntax.Definition) and len(path) == 1:
                static = any(ast.unparse(one) == "staticmethod" for one in found.node.decorator_list)
                return Verdict(EXISTS, definition=found.node, is_method=not static)
            return Verdict(EXISTS if len(path) == 1 else UNKNOWN)
        if path[0] in dir(object):
            return Verdict(EXISTS, "inherited from object")
        if cls.keywords:
            return Verdict(UNKNOWN, f"class {module}.{cls.name} has a metaclass")
        verdicts = []
        for base in cls.bases:
            text = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            verdicts.append(self.find(".".join([module, text, *path])))
        if verdicts and (surest := _surest(verdicts)).state != MISSING:
            return surest
        return Verdict(MISSING, f"class {module}.{cls.name} has no {path[0]}{_similar(cls, path[0])}")


def _surest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict with the highest priority: exists, then unknown, then missing."""
    return min(verdicts, key=lambda one: (EXISTS, UNKNOWN, MISSING).index(one.state))


def _similar(scope: ast.Module | ast.ClassDef, name: str) -> str:
    """Return the existing name that is closest to a missing one, as text to append to a message."""
    bound = {one.lower(): one for statement in syntax.statements(scope) for one in syntax.names_bound(statement)}
    close = difflib.get_close_matches(name.lower(), bound, 1, _CLOSE)
    return f", it has {bound[close[0]]}" if close else ""


def _is_namespace(folder: Path) -> bool:
    """Return whether a folder is a namespace package, not a folder of stubs for a compiled module."""
    return folder.is_dir() and not any(folder.parent.glob(f"{folder.name}.*so"))


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _home(node: ast.ImportFrom, package: str) -> str:
    """Return the module to which an import refers. A relative import is resolved in ``package``."""
    if not node.level:
        return str(node.module)
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
