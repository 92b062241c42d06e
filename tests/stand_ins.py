"""Stand-ins for upstream: modules and distributions in a folder of their own, plugins made of patches."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import forked

from ascend_adapt import Patch, hookimpl, wrap

TERMS: dict[str, Any] = {"why": "it breaks", "until": "it is fixed", "without": "crash"}
GRAVE: dict[str, Any] = {**TERMS, "without": "wrong numbers"}


class Site:
    """A folder on sys.path, as site-packages is one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, **sources: str) -> None:
        """Write modules by name, ``__`` for a dot; the packages above them are made too."""
        for name, source in sources.items():
            *packages, last = name.split("__")
            home = self.folder.joinpath(*packages)
            home.mkdir(parents=True, exist_ok=True)
            for depth in range(1, len(packages) + 1):
                self.folder.joinpath(*packages[:depth], "__init__.py").touch()
            path = home / last / "__init__.py" if (home / last).is_dir() else home / f"{last}.py"
            path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def package(self, name: str, source: str) -> None:
        """Write the ``__init__`` of a package, dots in its name."""
        home = self.folder.joinpath(*name.split("."))
        home.mkdir(parents=True, exist_ok=True)
        (home / "__init__.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def install(self, name: str, version: str, entry_points: str = "") -> None:
        """Record a distribution in this folder, with ``plugin = module`` lines for our entry-point group.

        A line ``[group]`` starts another group.
        """
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if entry_points:
            (info / "entry_points.txt").write_text(f"[ascend_adapt]\n{textwrap.dedent(entry_points)}\n")

    def run(self, code: str, *arguments: str, plain: bool = False, check: bool = True, **environ: str) -> str:
        """Run ``code`` in a fresh process that has this folder on its path, and return what it printed.

        A ``plain`` process cannot import ascend_adapt.
        """
        blocked = "import sys; sys.modules['ascend_adapt'] = None\n" if plain else ""
        path = os.pathsep.join([str(self.folder), str(Path(__file__).parent)])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", blocked + textwrap.dedent(code), *arguments],
            env={**os.environ, "PYTHONPATH": path, **environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + ("" if check else done.stderr)

    def fork(self, code: str, **environ: str) -> str:
        """Run ``code`` as ``run`` does, in a process that has already imported torch."""
        path = os.pathsep.join([str(self.folder), str(Path(__file__).parent)])
        done = forked.run(textwrap.dedent(code), self.folder, PYTHONPATH=path, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout


def plugin(*patches: Any, name: str = "stand_in") -> ModuleType:
    """A plugin module that contributes ``patches``."""
    module = ModuleType(name)

    @hookimpl
    def register_patches() -> list[Any]:
        return list(patches)

    module.register_patches = register_patches  # type: ignore[attr-defined]
    return module


def counting(target: str, calls: list[Any], **terms: Any) -> Patch:
    """A wrap that notes the instance of each call in ``calls`` and passes it on."""

    @wrap(target, **{**TERMS, "name": "counting", **terms})
    def count(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append(instance)
        return wrapped(*args, **kwargs)

    return count
