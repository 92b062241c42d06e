"""What is judged on source files alone is what becomes of the patch when the target is imported."""

from __future__ import annotations

import inspect
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stand_ins import TERMS, Site, counting

import ascend_adapt
from ascend_adapt import CodeBase, add, entry, provide, replace, rewrite, wrap
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree

Enable = Callable[..., ascend_adapt.Status]
SOURCE = """
from upstream.base import Base as B, helper
__version__ = "1.2"
def f(x, y=1): return x + y
if True:
    def either(): return 1
else:
    def either(): return 2
class Engine(B):
    TABLE = {}
    def own(self, x): return x + 1
    @staticmethod
    def static(x): return x
    @classmethod
    def of_class(cls, x): return x
    @property
    def value(self): return 1
    def __private(self): return 1
TABLE = {"k": 1}
"""
BASE = "class Base:\n    def inherited(self, x): return x + 1\ndef helper(): return 1\n"


def function(*args: Any, **kwargs: Any) -> None: ...


def short(x: int) -> int:
    return x


LAZY = "def __getattr__(name):\n    import elsewhere\n    return getattr(elsewhere, name)\n"
LISTED = "def __getattr__(name):\n    if name == {!r}:\n        return 1\n    raise AttributeError(name)\n"


@pytest.mark.parametrize(
    ("source", "state"),
    [(LAZY, "armed"), ("", "drifted"), (LISTED.format("Engine"), "armed"), (LISTED.format("another"), "drifted")],
)
def test_what_only_a_getattr_knows_is_judged_at_the_import(site: Site, source: str, state: str) -> None:
    site.write(upstream=source)
    one = Registered(counting("upstream:Engine.f", []), "p", "stand_in")
    (judged,) = static.judge([one], device="cpu", hosts={}, tree=SourceTree(site.folder))
    assert judged.state == state


PATCHES = {
    "wrap f": wrap("upstream:f", **TERMS)(function),
    "wrap gone": wrap("upstream:gone", **TERMS)(function),
    "wrap gone class": wrap("upstream:Gone.f", **TERMS)(function),
    "wrap gone method": wrap("upstream:Engine.gone", **TERMS)(function),
    "wrap own": wrap("upstream:Engine.own", **TERMS)(function),
    "wrap body": wrap("upstream:Engine.own", bodies="0" * 16, **TERMS)(function),
    "wrap inherited body": wrap("upstream:Engine.inherited", bodies="0" * 16, **TERMS)(function),
    "wrap inherited": wrap("upstream:Engine.inherited", **TERMS)(function),
    "wrap private": wrap("upstream:Engine.__private", **TERMS)(function),
    "wrap mangled": wrap("upstream:Engine._Engine__private", **TERMS)(function),
    "wrap borrowed": wrap("upstream:helper", **TERMS)(function),
    "wrap gone module": wrap("upstream.gone:f", **TERMS)(function),
    "wrap value": wrap("upstream:TABLE", **TERMS)(function),
    "wrap class": wrap("upstream:Engine", **TERMS)(function),
    "replace value by function": replace("upstream:TABLE", **TERMS)(short),
    "replace f": replace("upstream:f", **TERMS)(lambda x, y=1: x),
    "replace f short": replace("upstream:f", **TERMS)(short),
    "replace own": replace("upstream:Engine.own", **TERMS)(lambda engine, x: x),
    "replace static short": replace("upstream:Engine.static", **TERMS)(lambda: 1),
    "replace static": replace("upstream:Engine.static", **TERMS)(short),
    "replace class": replace("upstream:Engine.of_class", **TERMS)(lambda kind, x: x),
    "replace body": replace("upstream:Engine.own", bodies="0" * 16, **TERMS)(lambda engine, x: x),
    "replace value": replace("upstream:TABLE", value={}, **TERMS),
    "rewrite f": rewrite("upstream:f", old="x + y", new="x - y", **TERMS),
    "rewrite gone": rewrite("upstream:f", old="x * y", new="x - y", **TERMS),
    "rewrite done": rewrite("upstream:f", old="x * y", new="x + y", **TERMS),
    "rewrite own": rewrite("upstream:Engine.own", old="x + 1", new="x", **TERMS),
    "rewrite private": rewrite("upstream:Engine.__private", old="1", new="2", **TERMS),
    "rewrite inherited": rewrite("upstream:Engine.inherited", old="x + 1", new="x", **TERMS),
    "rewrite no function": rewrite("upstream:TABLE", old="1", new="2", **TERMS),
    "add new": add("upstream:new", value=1, **TERMS),
    "add method": add("upstream:Engine.new", value=1, **TERMS),
    "add there": add("upstream:f", value=1, **TERMS),
    "add inherited": add("upstream:Engine.inherited", value=1, **TERMS),
    "add gone class": add("upstream:Gone.new", value=1, **TERMS),
    "entry": entry("upstream:TABLE", "k", 2, present=True, **TERMS),
    "entry gone": entry("upstream:GONE", "k", 2, present=True, **TERMS),
    "version": wrap("upstream:f", requires="upstream<1", **TERMS)(function),
    "version in": wrap("upstream:f", requires="upstream>=1", **TERMS)(function),
    "device": wrap("upstream:f", devices="npu", **TERMS)(function),
    "host": wrap("upstream:f", host=CodeBase("h", present=("nowhere",)), **TERMS)(function),
}


@pytest.mark.parametrize("name", PATCHES)
def test_the_static_verdict_is_what_happens(site: Site, enable: Enable, name: str) -> None:
    site.package("upstream", SOURCE)
    site.write(upstream__base=BASE)
    patch = PATCHES[name]
    hosts = {host.name: host for host in patch.hosts if isinstance(host, CodeBase)}
    registered = Registered(patch, "p", "stand_in")
    (of_tree,) = static.judge([registered], device="cpu", hosts=hosts, tree=SourceTree(site.folder))
    (installed,) = static.judge([registered], device="cpu", hosts=hosts)
    assert "upstream" not in sys.modules
    enable(patch, device="cpu")
    try:
        import upstream.gone
    except ImportError:
        import upstream  # noqa: F401
    (happened,) = [one for one in ascend_adapt.status().outcomes if one.plugin == "stand_in"]
    expected = "armed" if happened.state == "applied" else happened.state
    if name == "wrap gone module":
        expected = "drifted"  # only its import would show it
    assert (of_tree.state, installed.state) == (expected, expected), (of_tree.reason, happened.reason)
    assert of_tree.requires == happened.requires


def test_what_is_not_installed_is_skipped(site: Site) -> None:
    registered = Registered(counting("nowhere_at_all.x:f", []), "p", "stand_in")
    (outcome,) = static.judge([registered], device="cpu", hosts={})
    assert (outcome.state, outcome.reason) == ("skipped", "nowhere_at_all is not installed")


def test_a_package_in_an_archive_is_checked_when_it_is_imported(site: Site, enable: Enable, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("upstream/__init__.py", "def f(): return 1")
    sys.path.insert(0, str(tmp_path / "all.zip"))  # the fixture restores it
    patch = counting("upstream:f", [])
    (outcome,) = static.judge([Registered(patch, "p", "s")], device="cpu", hosts={})
    assert (outcome.state, outcome.reason) == ("armed", "checked when upstream is imported, which is not in a folder")
    enable(patch)
    import upstream  # noqa: F401

    assert ascend_adapt.status()["counting"].state == "applied"


def test_a_provided_module_and_a_real_one(site: Site, tmp_path: Path) -> None:
    site.write(real="")
    for name, state in (("real", "not_needed"), ("unreal", "armed")):
        patch = provide(name, **TERMS)(lambda module: None)
        for tree in (None, SourceTree(site.folder)):
            (outcome,) = static.judge([Registered(patch, "p", "s")], device="cpu", hosts={}, tree=tree)
            assert outcome.state == state


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"PKG-INFO": "Metadata-Version: 2.1\nName: upstream\nVersion: 0.9.2\n"}, "0.9.2"),
        ({"version.txt": "0.6.0\n"}, "0.6.0"),
        ({"upstream/__init__.py": "__version__: str = '1.5'\n"}, "1.5"),
        ({"upstream/__init__.py": "__version__ = make()\n", "version.txt": "0.6.0"}, "0.6.0"),
        # As Megatron-core has it; newer releases then run git, which is not asked.
        (
            {
                "upstream/__init__.py": "from upstream.package_info import __name__, __version__\n",
                "upstream/package_info.py": "import os\nMAJOR = 0\nMINOR, PATCH = 14, make()\nPRE = 'rc1'\n"
                "VERSION = (MAJOR, 14, 2, PRE)\n"
                "__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])\n"
                "if os.environ:\n    __version__ += make()\n",
                "version.txt": "0.6.0",
            },
            "0.14.2rc1",
        ),
        ({"upstream/__init__.py": "from elsewhere import __version__\n", "version.txt": "0.6.0"}, "0.6.0"),
        ({"upstream/__init__.py": "try:\n    __version__ = '7'\nexcept OSError:\n    pass\n"}, "7"),
        ({"upstream/__init__.py": "__version__ = ().__class__.join('x')\n", "version.txt": "0.6.0"}, "0.6.0"),
        ({"upstream/__init__.py": "__version__ = '.'.join((1, 2))\n", "version.txt": "0.6.0"}, "0.6.0"),
        ({"PKG-INFO": "Version: 1\n", "upstream/__init__.py": "__version__ = '2'\n"}, "2"),
    ],
)
def test_the_version_of_a_source_tree(tmp_path: Path, files: dict[str, str], version: str) -> None:
    tree = SourceTree(tmp_path)
    (tmp_path / "upstream").mkdir()
    (tmp_path / "upstream" / "__init__.py").touch()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    patch = counting("upstream:f", [], requires="upstream>=999")
    (outcome,) = static.judge([Registered(patch, "p", "s")], device="cpu", hosts={}, tree=tree)
    assert outcome.found == f"upstream {version}"


@pytest.mark.parametrize(
    "text",
    [
        "def f(): ...",
        "def f(a, b, c=1, /, d=2, *args, e, g=3, **kwargs): ...",
        "def f(a, /, *, b): ...",
        "def f(*args, **kwargs): ...",
        "async def f(self, x=None): ...",
    ],
)
def test_signatures_read_from_source(text: str) -> None:
    import ast

    module = ModuleType("m")
    exec(text, vars(module))
    read = static.signature_of(ast.parse(text).body[0])
    real = inspect.signature(module.f)
    assert [(one.name, one.kind, one.default is one.empty) for one in read.parameters.values()] == [
        (one.name, one.kind, one.default is one.empty) for one in real.parameters.values()
    ]


@pytest.mark.parametrize("kind", ["replace", "wrap"])
def test_the_digest_of_a_body_is_the_same_for_source_and_process(site: Site, enable: Enable, kind: str) -> None:
    site.package("upstream", SOURCE)
    site.write(upstream__base=BASE)
    (found,) = static.definitions(PATCHES["wrap own"], SourceTree(site.folder))
    known = {"bodies": syntax.digest(found.node), "name": "known", **TERMS}
    patch = (
        replace("upstream:Engine.own", **known)(lambda engine, x: 7)
        if kind == "replace"
        else wrap("upstream:Engine.own", **known)(lambda wrapped, instance, args, kwargs: 7)
    )
    # What lies on the same target does not count: it is upstream's own body that was read.
    below = wrap("upstream:Engine.own", name="below", **TERMS)(lambda wrapped, instance, args, kwargs: wrapped(*args))
    enable(below, patch)
    import upstream

    assert ascend_adapt.status()["known"].state == "applied"
    assert upstream.Engine().own(1) == 7
