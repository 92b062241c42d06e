"""`pytest --pyargs ascend_adapt.testing` as users start it, and that it fails where something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from ascend_adapt import hookimpl, rewrite, wrap
{top}
@wrap("target_of_ours.module:function", {terms})
def ours(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)

@hookimpl
def register_patches(): return [ours]
"""
TERMS = 'requires="target_of_ours>=1,<2", why="w", until="u", without="crash"'


def pytest_in(folder: Path, *options: str, suite: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--pyargs", "ascend_adapt.testing", "--evidence", str(folder / "evidence.json")] if suite else []
    command += options
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=250)


def test_another_pytest_run_does_not_notice_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--patch')\n")
    (tmp_path / "test_own.py").write_text(
        "import sys\ndef test_own(request):\n"
        "    assert request.config.getoption('--patch') == 'mine'\n"
        "    assert not {'torch', 'ascend_adapt.testing.command_line', 'pluggy.x'} & set(sys.modules)\n"
    )
    job = pytest_in(tmp_path, "--patch", "mine", "test_own.py", suite=False)
    assert job.returncode == 0, job.stdout + job.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--patch", "nope"], "--patch nope: no plugin registers it"),
        (["--plugin", "nope_at_all"], "--plugin nope_at_all: neither an installed plugin nor a module"),
        (["--plugin", "raises_at_once"], "--plugin raises_at_once: cannot be imported (NameError: name 'x' is not"),
        (["--plugin", "os"], "--plugin os: registers no patches"),
        (["--upstream", "missing"], "--upstream missing: is not a folder"),
        (["--upstream", "."], "--upstream .: contains none of "),
        (["-n", "2"], "-n, --dist: several processes, expected one"),
        (["--evidence", "/dev/null/x"], "--evidence /dev/null/x: "),
        (["--evidence", "raises_at_once.py"], "raises_at_once.py: is not a file of evidence records"),
        (["--hardware"], "--hardware: "),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(options: list[str], text: str, tmp_path: Path) -> None:
    if options == ["--hardware"] and list(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("an NPU may be here")
    (tmp_path / "raises_at_once.py").write_text("x")
    job = pytest_in(tmp_path, *options)
    assert job.returncode == 4
    assert text in job.stderr
    assert "Traceback" not in job.stdout + job.stderr


@pytest.mark.parametrize(
    ("top", "terms", "text"),
    [
        ("", TERMS.replace(">=1,<2", ">2,<1"), "admits no version near its bounds"),
        ("import target_of_ours.module", TERMS, "target_of_ours is imported when the plugin is loaded"),
        ("", TERMS.replace(">=1,<2", ">=1"), "is drifted: target_of_ours.module:function"),
    ],
)
def test_a_plugin_that_is_wrong_fails(top: str, terms: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "target_of_ours").mkdir()
    (tmp_path / "target_of_ours" / "__init__.py").write_text("__version__ = '3.0'\n")
    (tmp_path / "target_of_ours" / "module.py").write_text("def another_function(): ...\n")
    (tmp_path / "plugin_of_ours.py").write_text(PLUGIN.format(top=top, terms=terms))
    job = pytest_in(tmp_path, "--plugin", "plugin_of_ours", "-k", "not compile")
    assert job.returncode == 1, job.stdout + job.stderr
    assert text in job.stdout


def test_a_patch_that_register_patches_leaves_out_is_named(tmp_path: Path) -> None:
    forgotten = f"@wrap('target_of_ours.module:g', {TERMS})\ndef forgotten(wrapped, instance, args, kwargs): ..."
    (tmp_path / "plugin_of_ours.py").write_text(PLUGIN.format(top=forgotten, terms=TERMS))
    job = pytest_in(tmp_path, "--plugin", "plugin_of_ours")
    assert job.returncode == 4
    assert "wrap target_of_ours.module:g is declared, but register_patches does not return it" in job.stderr


def test_it_runs_in_a_project_with_a_pytest_configuration_of_its_own(tmp_path: Path) -> None:
    own = "-n 2 --strict-markers --import-mode=importlib"
    names = "python_files = check_*.py\npython_functions = check_*\ntestpaths = tests\npythonpath = src"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {own}\n{names}\n")
    package = tmp_path / "src" / "target_of_ours"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1.0'\n")
    (package / "module.py").write_text("def function(): ...\n")
    (tmp_path / "src" / "plugin_of_ours.py").write_text(PLUGIN.format(top="", terms=TERMS))
    job = pytest_in(tmp_path, "--plugin", "plugin_of_ours", "-k", "not compile", "-n", "0")
    assert job.returncode == 0, job.stdout + job.stderr
    assert "1 of 1 patches were applied, 1 on a real target" in job.stdout


# Each makes the engine wrong in one way; the scenarios beside it must see it.
SABOTAGE = {
    "a revert that does nothing": (
        "from ascend_adapt.patches.apply import applied_patch as application; application.Layer.undo = lambda self: {}",
        "wrap",
        "orders: ided",
    ),
    "a rewrite that stays": (
        "from ascend_adapt.patches.apply import applied_patch; applied_patch.Rewritten.undo = lambda self: {}",
        "rewrite",
        "orders: ided",
    ),
    "a gate that admits everything": (
        "from ascend_adapt.patches.judge import gate; gate.judge = lambda *_: gate.Verdict(True, '')",
        "wrap",
        "gate: target_of_ours 2.dev0, above",
    ),
    "aliases that do not follow": (
        "from ascend_adapt.patches.apply import aliases, rebinding; "
        "rebinding.rebind = aliases.rebind = lambda *_, **__: 0",
        "wrap",
        "aliases: before and after",
    ),
    "drift that is passed over": (
        "from ascend_adapt.patches.apply.record import PatchRecord as Record; said = Record.set; "
        "Record.set = lambda self, state, reason: said(self, 'armed' if state == 'drifted' else state, reason)",
        "wrap",
        "drift: gone, enabled before the import",
    ),
    "rivals that are let in": (
        "from ascend_adapt.patches.apply import claims; claims.Claims._others = lambda self, record: []",
        "rewrite",
        "conflict: two plugins change it",
    ),
    "a target imported by enable()": (
        "import importlib; from ascend_adapt.runtime import enabling as runtime; begin = runtime._begin; "
        "runtime._begin = lambda *a: (begin(*a), importlib.import_module('target_of_ours'))[0]",
        "wrap",
        "quiet: nothing is imported",
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_broken_engine_is_seen(name: str, tmp_path: Path) -> None:
    sabotage, kind, scenario = SABOTAGE[name]
    code = f"""
import sys
from pathlib import Path
from ascend_adapt import rewrite, wrap
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.testing import scenarios, stage
terms = dict({TERMS})
patch = wrap("target_of_ours.module:function", **terms)(lambda wrapped, instance, args, kwargs: wrapped(*args))
if {kind!r} == "rewrite":
    patch = rewrite("target_of_ours.module:function", old="x + 1", new="x + 2", **terms)
one = Registered(patch, "ours", "plugin_of_ours")
topic, _, wanted = {scenario!r}.partition(": ")
names = [name for name in scenarios.of(patch)[topic] if name.startswith(wanted)]
assert names, list(scenarios.of(patch)[topic])
def results(folder):
    return {{stage._in_a_child(scenarios.of(patch)[topic][name], one, Path(folder, str(index)), None)[0]
            for index, name in enumerate(names)}}
assert results("right") == {{"passed"}}
{sabotage}
assert results("wrong") == {{"failed"}}
"""
    job = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
