"""Installations: where a target is, and in which version, in this process or in a source tree."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from ascend_adapt import probe
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.target import Target
from ascend_adapt.patches.judge import literals


@dataclass(frozen=True)
class Version:
    """Version of a package. ``text`` is None if it is unknown. ``later``: a future import may reveal it."""

    text: str | None
    note: str = ""
    later: bool = False


class Installation(Protocol):
    """Facts that the gate reads. ``gains_paths``: a missing package may appear when a script changes sys.path."""

    gains_paths: bool

    def version(self, name: str, target: Target, of_hosts: Collection[str] = ()) -> Version:
        """Return the version of the distribution or package ``name`` that is relevant for ``target``.

        ``of_hosts`` are modules of the code bases. If ``name`` is one of them, its version is known once it is
        imported.
        """

    def folder(self, module: str) -> Path | None:
        """Return the folder that contains the top-level package of ``module``, or None."""

    def has_begun(self, root: str) -> bool:
        """Return whether code of the top-level package ``root`` has run."""

    def runs_a_script_of(self, code_base: CodeBase) -> bool:
        """Return whether the main script of this process belongs to a code base."""


def is_complete(module: ModuleType) -> bool:
    """Return whether the import of the module has finished."""
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


def missing_module(target: Target, is_complete: Callable[[str], bool]) -> str:
    """Return which part of the target's module path is missing, or ``""`` if it may still be imported.

    Only direct children of loaded packages are checked, so that nothing is imported.
    """
    for package, module in zip(target.packages[1:], target.packages, strict=False):
        if package in sys.modules:
            if not is_complete(package):
                return ""
            try:
                found = importlib.util.find_spec(module) is not None
            except (ImportError, AttributeError, ValueError):
                found = False  # the parent is not a package, or has no valid spec
            return "" if found else f"{module} is not in package {package}"
    return ""


def packages_named(name: str, packages: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``packages`` that ``name`` refers to; ``megatron-core`` refers to ``megatron.core``."""
    return tuple(package for package in packages if _canonical(package) == _canonical(name))


def _own_packages(name: str, target: Target, of_hosts: Collection[str]) -> tuple[str, ...]:
    return packages_named(name, target.packages) or packages_named(name, of_hosts)


def _recorded_version(name: str, own: Sequence[str]) -> str | None:
    """Return the version of the distribution ``name``, or None if the packages ``own`` do not belong to it."""
    return probe.owning_version(name, own[0]) if own else probe.distribution_version(name)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class ThisProcess:
    """The packages installed and imported in this process.

    The version of a loaded package is its ``__version__``. Otherwise it is that of the distribution that owns the
    files. ``complete(module)`` returns whether all code of a loaded module has run. ``begun(root)`` returns whether any
    code of a top-level package has run.
    """

    gains_paths = True

    def __init__(self, complete: Callable[[str], bool], begun: Callable[[str], bool]) -> None:
        self._complete, self.has_begun = complete, begun

    def version(self, name: str, target: Target, of_hosts: Collection[str] = ()) -> Version:
        """Return the version, as declared in Installation."""
        own = _own_packages(name, target, of_hosts)
        if own and own[0] not in target.packages and not self.has_begun(own[0].partition(".")[0]):
            # The script may still add a path with another version, and until the import no version is needed.
            return Version(None, later=True)
        said = next(filter(None, map(self._said_by, own or (name.replace("-", "_"),))), None)
        recorded = _recorded_version(name, own)
        if said and recorded and said != recorded:
            return Version(said, f"{name}.__version__ is {said}, its distribution records {recorded}")
        later = bool(own) and any(self._is_to_come(module) for module in (*own, target.module))
        return Version(said or recorded, later=later)

    def folder(self, module: str) -> Path | None:
        return probe.root_folder(module)

    def runs_a_script_of(self, code_base: CodeBase) -> bool:
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        return file is not None and any(not code_base.owns(folder) for folder in Path(file).resolve().parents[:3])

    def _said_by(self, package: str) -> str | None:
        module = sys.modules.get(package)
        said = vars(module).get("__version__") if isinstance(module, ModuleType) else None
        # DeepSpeed's __version__ ends in a space if it is imported from a source tree.
        return said.strip() if isinstance(said, str) else None

    def _is_to_come(self, name: str) -> bool:
        return sys.modules.get(name) is None or not self._complete(name)


class SourceTree:
    """A folder of packages, such as site-packages, an unpacked source distribution or a checkout; nothing is imported.

    Packages that are missing in the folder are judged as installed in this environment. The version of a package is a
    ``__version__`` made of literals, else the version in PKG-INFO or version.txt. With ``installed``, the metadata of
    the distribution comes first.
    """

    gains_paths = False

    def __init__(self, root: Path, installed: bool = False) -> None:
        self.root, self.installed = root, installed

    def version(self, name: str, target: Target, of_hosts: Collection[str] = ()) -> Version:
        """Return the version, as declared in Installation."""
        own = _own_packages(name, target, of_hosts)
        if self.installed:
            recorded = _recorded_version(name, own)
            if recorded or not own:
                return Version(recorded)
        packages = own or (name.replace("-", "_"),)
        if self.folder(packages[-1]) is None:
            return Version(probe.distribution_version(name))
        said = next(filter(None, map(self._written_version, packages)), None)
        return Version(said or self._version_file())

    def folder(self, module: str) -> Path | None:
        root = module.partition(".")[0]
        return self.root if (self.root / root).is_dir() or (self.root / f"{root}.py").exists() else None

    def has_begun(self, root: str) -> bool:
        return True  # a source tree is judged as if it were imported

    def runs_a_script_of(self, code_base: CodeBase) -> bool:
        return True

    def source_of(self, module: str) -> Path | None:
        """Return the file of ``module``, or None."""
        path = self.root.joinpath(*module.split("."))
        for candidate in (path / "__init__.py", path.with_suffix(".py")):
            if candidate.is_file():
                return candidate
        return None

    def _written_version(self, package: str) -> str | None:
        """Return the literal ``__version__`` in a package's source, or in the submodule that it imports it from."""
        source = self.source_of(package)
        if source is None:
            return None
        tree = syntax.parse_file(source)
        for found in syntax.find(tree, ("__version__",)):
            home = found.node.module if isinstance(found.node, ast.ImportFrom) and not found.node.level else None
            if home is not None and home.startswith(f"{package}.") and (inner := self.source_of(home)) is not None:
                tree = syntax.parse_file(inner)
        said = literals.value(tree, "__version__")
        return said if isinstance(said, str) else None

    def _version_file(self) -> str | None:
        for name, pattern in (("PKG-INFO", r"(?m)^Version: (\S+)$"), ("version.txt", r"^\s*(\S+)\s*$")):
            path = self.root / name
            match = re.search(pattern, path.read_text(errors="replace")) if path.is_file() else None
            if match:
                return match[1]
        return None
