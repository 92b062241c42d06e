"""Import altered modules of the installed release with its patches enabled, each in a forked child of this process.

Everything else of the package is imported once, before. Prints one JSON object: patch, alteration and order -> state.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import altered_source
from upstream_releases import UPSTREAMS

import ascend_adapt
from ascend_adapt import probe
from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.declare.target import locate
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import release_matrix

INHERITED = "not asked: a class of another package has the name too"


class Altered(importlib.abc.MetaPathFinder):
    """Finds altered files first; a module whose file is None cannot be imported."""

    def __init__(self, files: dict[str, Path | None]) -> None:
        self.files = files

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.files:
            return None
        file = self.files[fullname]
        if file is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        own = importlib.machinery.PathFinder.find_spec(fullname, path)
        locations = own.submodule_search_locations
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=locations)


def module_of(path: Path, tree: SourceTree) -> str:
    parts = path.relative_to(tree.root).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def state(one: Registered, kind: str, late: bool, tree: SourceTree, folder: Path) -> str:
    """Alter the target, import it again, and return what the patch became; ``late``: enabled after that."""
    files: dict[str, Path | None] = {}
    for path, text in altered_source.altered(one.patch, kind, tree).items():
        module = module_of(path, tree)
        files[module] = None if text is None else folder / f"{module}.py"
        if text is not None:
            (folder / f"{module}.py").write_text(text)
    sys.meta_path.insert(0, Altered(files))
    # A base class is copied by every module around it.
    around = [module.rpartition(".")[0] for module in files if module != one.patch.target.module]
    for name in list(sys.modules):
        is_around = any(f"{name}.".startswith(f"{package}.") for package in around)
        if name in (*files, one.patch.target.module) or is_around:
            del sys.modules[name]
    importlib.invalidate_caches()
    device = (one.patch.devices or ("cpu",))[0]
    os.environ["ASCEND_ADAPT_ALLOW_DRIFT"] = one.full_name

    def import_it() -> None:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(one.patch.target.module)

    import_it() if late else ascend_adapt.enable(device=device)
    ascend_adapt.enable(device=device) if late else import_it()
    return ascend_adapt.status()[one.full_name].state


def has_a_base_elsewhere(one: Registered) -> bool:
    """Return whether a class of another package has the target's name too: without its own, it inherits that one."""
    place = locate(one.patch.target, sys.modules[one.patch.target.module])
    bases = place.owner.__mro__[1:] if isinstance(place.owner, type) else ()
    others = [base for base in bases if base.__module__.partition(".")[0] != one.patch.target.root]
    return any(place.name in vars(base) for base in others)


def in_a_child(*arguments) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        os.dup2(2, 1)
        with tempfile.TemporaryDirectory() as folder, os.fdopen(writer, "w") as pipe:
            try:
                reported = state(*arguments, Path(folder))
            except PatchDrift:
                reported = "drifted"
            except BaseException as error:
                reported = f"raised {type(error).__name__}: {error}"
            pipe.write(reported)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reported = pipe.read()
    os.waitpid(child, 0)
    return reported


def main() -> None:
    (upstream,) = [one for one in UPSTREAMS if one.distribution == sys.argv[1]]
    tree = SourceTree(probe.root_folder(upstream.package), installed=True)
    own = [one for one in upstream.patches() if one.patch.target.root == upstream.package]
    fitting = []
    for one in own:
        device = (one.patch.devices or ("cpu",))[0]
        (outcome,) = static.judge([one], device=device, hosts=release_matrix.hosts_for(one.patch))
        fitting += [one] if outcome.state == "armed" else []
    with contextlib.redirect_stdout(sys.stderr):
        for one in fitting:
            importlib.import_module(one.patch.target.module)
    results = {}
    for one in fitting:
        for kind in altered_source.kinds(one.patch):
            for late in (False, True):
                name = f"{one.name}: {kind}, enabled {'after' if late else 'before'} the import"
                hidden = kind in ("gone", "renamed") and has_a_base_elsewhere(one)
                results[name] = INHERITED if hidden else in_a_child(one, kind, late, tree)
    print()
    print(json.dumps(results), end="")


if __name__ == "__main__":
    main()
