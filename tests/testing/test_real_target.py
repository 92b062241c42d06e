"""The suite on an installed target sees an engine, or a patch, that does not do what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from ascend_adapt import entry, hookimpl, provide, rewrite, wrap
TERMS = dict(requires="target_of_ours>=1,<2", why="w", until="u", without="crash")

@wrap("target_of_ours.module:function", **TERMS)
def wrapped(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)

@provide("target_of_ours.extra", **TERMS)
def provided(module): module.name = 1

@provide("target_of_ours.no_such_package.extra", **TERMS)
def misspelt(module): module.name = 1

rewritten = rewrite("target_of_ours.module:other", old="x + 1", new="x + 2", **TERMS)
added = entry("target_of_ours.module:TABLE", "key", 1, present=False, name="added", **TERMS)

@hookimpl
def register_patches(): return [wrapped, provided, misspelt, rewritten, added]
"""
TARGET = "TABLE = {}\ndef function(x): return x\ndef other(x): return x + 1\n"
CODE = """
import json, sys
from ascend_adapt.patches.apply import applied_patch as application
from ascend_adapt.testing import real_target
import plugin_of_ours
from ascend_adapt.testing.stage import find
{sabotage}
one = find("plugin_of_ours.{name}", ["plugin_of_ours"])
try:
    (result,) = real_target._all({{"plugin_of_ours.{name}": one}}, [plugin_of_ours], "cpu").values()
except AssertionError as error:
    result = ["failed", str(error)]
print(json.dumps(result))
"""


def on_the_target(name: str, folder: Path, sabotage: str = "") -> list[str]:
    (folder / "target_of_ours").mkdir()
    (folder / "target_of_ours" / "__init__.py").write_text("__version__ = '1.0'\n")
    (folder / "target_of_ours" / "module.py").write_text(TARGET)
    (folder / "plugin_of_ours.py").write_text(PLUGIN)
    command = [sys.executable, "-c", CODE.format(name=name, sabotage=sabotage)]
    job = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
    result: list[str] = json.loads(job.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", ["wrapped", "provided", "rewritten", "added"])
def test_a_right_patch_passes(name: str, tmp_path: Path) -> None:
    assert on_the_target(name, tmp_path) == ["passed", ""]


def test_a_module_provided_below_a_package_that_is_not_there_fails(tmp_path: Path) -> None:
    result, text = on_the_target("misspelt", tmp_path)
    assert result == "failed"
    assert "provided, but target_of_ours.no_such_package.extra cannot be imported here" in text


@pytest.mark.parametrize(
    ("name", "sabotage"),
    [
        ("wrapped", "application.Layer.undo = lambda self: {}"),
        ("rewritten", "application.Rewritten.undo = lambda self: {}"),
        ("rewritten", "application.Rewritten._run = lambda *_: None; application.Rewritten.holds = lambda _: True"),
        ("added", "application.Entry.undo = lambda self: {}"),
        ("wrapped", "application.Layer.follow = lambda *_: 1 / 0"),
    ],
)
def test_an_engine_that_does_not_do_or_undo_is_seen(name: str, sabotage: str, tmp_path: Path) -> None:
    result, text = on_the_target(name, tmp_path, sabotage)
    assert result == "failed", text
