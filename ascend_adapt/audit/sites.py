"""Patch sites: the places in a patcher's source that assign an attribute of another package."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare import syntax

_DOTTED = re.compile(r"[a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)+")
_REGISTERS = re.compile(r"patch|replace_func|register_func", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """One patch in a source: the dotted target, the replacement as written, and its place.

    ``is_named``: the target is not an assignment but a string that a function of the patcher resolves.
    """

    target: str
    replacement: str
    file: Path
    line: int
    is_named: bool = False

    @property
    def root(self) -> str:
        """Top-level package of the target."""
        return self.target.partition(".")[0]

    @property
    def is_wrapper(self) -> bool:
        """Whether the replacement wraps the original, judged by the names that patchers usually give to wrappers."""
        return self.replacement.rpartition(".")[2].endswith(("wrapper", "decorator", "Wrapper", "Decorator"))


def sites(folder: Path) -> tuple[list[Site], list[str]]:
    """Return the patch sites in all Python files of a folder, and the reason for each file that could not be read."""
    own = {folder.name}
    # The folders of a package are not named like what they patch: liger_kernel.transformers is not transformers.
    if not (folder / "__init__.py").is_file():
        own |= {path.name for path in folder.iterdir() if path.is_dir()}
    found, problems = [], []
    for file in sorted(folder.rglob("*.py")):
        try:
            of_file = [site for site in _of_module(syntax.parse_file(file), file) if site.root not in own]
        except PatchDrift as error:
            problems.append(str(error))
        except RecursionError:
            problems.append(f"{file}: an expression is nested too deeply")
        else:
            found += of_file
    return found, problems


def _of_module(tree: ast.Module, file: Path) -> Iterator[Site]:
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                dotted = _dotted(target, names) if isinstance(target, ast.Attribute) else ""
                # A flag or a number is a setting of the package, not a patch.
                if dotted and not (isinstance(node.value, ast.Constant) and node.value.value is not None):
                    yield Site(dotted, ast.unparse(node.value), file, node.lineno)
        elif isinstance(node, ast.Call):
            site = _of_call(node, names, file)
            if site is not None:
                yield site


def _of_call(call: ast.Call, names: dict[str, str], file: Path) -> Site | None:
    """Return the site of ``setattr(module, "name", new)`` or of a call such as ``register_patch("a.b.c", new)``."""
    called = ast.unparse(call.func).rpartition(".")[2]
    match call.args:
        case [owner, ast.Constant(value=str(name)), value] if called == "setattr":
            dotted = _dotted(owner, names)
            return Site(f"{dotted}.{name}", ast.unparse(value), file, call.lineno) if dotted else None
        case [ast.Constant(value=str(target)), *rest] if _REGISTERS.search(called) and _DOTTED.fullmatch(target):
            if target.partition(".")[0] in sys.stdlib_module_names:
                return None
            new = rest[0] if rest else next((one.value for one in call.keywords if one.arg), None)
            return Site(target, "" if new is None else ast.unparse(new), file, call.lineno, is_named=True)
    return None


def imported(tree: ast.Module) -> dict[str, str]:
    """Return name -> dotted path for a module's absolute imports, including imports inside functions."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: path for name, path in names.items() if path.partition(".")[0] not in sys.stdlib_module_names}


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the dotted path of an expression such as ``module.Class.method``, or "" if its root is not imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])
