"""`ascend-adapt audit` on a small patcher of a small package: its source read, and its changes seen as it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ascend_adapt import cli

UPSTREAM = {
    "victim/__init__.py": "from .core import Layer, norm\nfrom . import core\n",
    "victim/core.py": (
        "def norm(x, eps=1e-5):\n    return x\ndef helper():\n    return 1\nFLAG = True\n"
        "class Base:\n    def inherited(self):\n        return 0\n"
        "class Layer(Base):\n    def forward(self, x, mask=None):\n        return x\n"
    ),
    "victim/user.py": "from victim.core import norm\n",
}
PATCHER = """
import victim.core
import victim.user
from victim.core import Layer
from functools import wraps


def fast_norm(x, eps=1e-5):
    return x


def wrapped(function):
    @wraps(function)
    def forward_wrapper(self, x, mask=None):
        return function(self, x)

    return forward_wrapper


def forward(self, x):
    return x


victim.core.norm = fast_norm
victim.core.norm = lambda x, eps: x
victim.core.helper = None
victim.core.FLAG = False
setattr(victim.core, "helpers", fast_norm)
Layer._original_forward = Layer.forward
Layer.forward = wrapped(Layer.forward)


def register_patch(target, new=None):
    pass


def later():
    register_patch("victim.core.Layer.inherited", forward)
    register_patch("victim.core.Layer.Layer.forward", forward)
    register_patch("victim.removed.function", forward)
    register_patch("victim.core.Layer.forward", forward)
    register_patch("absent_package.f", forward)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in {**UPSTREAM, "patcher/__init__.py": "", "patcher/patch.py": PATCHER}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_the_source_of_a_patcher(folder, capsys):
    assert cli.main(["audit", "--json", "--static", str(folder / "patcher"), "--upstream", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    by_state = {}
    for site in found["sites"]:
        by_state.setdefault(site["state"], []).append((site["target"], site["reason"]))
    assert by_state["missing"] == [
        ("victim.core.Layer.Layer.forward", "class victim.core.Layer has no Layer"),
        ("victim.removed.function", "victim has no removed"),
    ]
    assert by_state["added"] == [("victim.core.helpers", "victim.core has no helpers, it has helper")]
    assert by_state["set to None"] == [("victim.core.helper", "code that calls it raises TypeError")]
    assert by_state["signature differs"] == [
        (f"victim.core.Layer.{name}", "the replacement does not accept every argument by position")
        for name in ("inherited", "forward")
    ]
    assert by_state["unknown"] == [("absent_package.f", "absent_package was not found")]
    assert set(found["several"]) == {"victim.core.norm", "victim.core.Layer.forward"}
    assert not any("original" in site["target"] for site in found["sites"])


def test_a_subpackage_of_the_name_of_what_is_patched(folder, capsys):
    # As liger_kernel.transformers, which patches transformers.
    (folder / "patcher" / "victim").mkdir()
    (folder / "patcher" / "victim" / "patch.py").write_text("import victim.core\nvictim.core.norm = lambda x, eps: x\n")
    assert cli.main(["audit", "--json", "--static", str(folder / "patcher"), "--upstream", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(site["at"].endswith("victim/patch.py:2") for site in found["sites"])


def test_a_patcher_as_it_runs(folder, capsys):
    assert cli.main(["audit", "--json", "--", sys.executable, "-c", "import patcher.patch"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["processes"]) == (0, 1)
    kinds = [(one["target"], one["kind"], one["by"]) for one in found["changes"]]
    assert kinds == [
        ("victim.core.norm", "changed", "patcher.patch"),
        ("victim.core.norm", "changed", "patcher.patch"),
        ("victim.core.helper", "set to None", "patcher.patch"),
        ("victim.core.FLAG", "setting", "patcher.patch"),
        ("victim.core.helpers", "added", "patcher.patch"),
        ("victim.core.Layer.forward", "changed", "patcher.patch"),
    ]
    line = PATCHER.splitlines().index("victim.core.norm = fast_norm") + 1
    assert found["changes"][0]["at"] == f"{folder}/patcher/patch.py:{line}"
    assert list(found["several"]) == ["victim.core.norm"]
    assert found["stale_aliases"] == [
        {"alias": "victim.norm", "of": "victim.core.norm"},
        {"alias": "victim.user.norm", "of": "victim.core.norm"},
    ]


def test_a_method_set_to_none_at_run_time(folder, capsys):
    code = "import victim.core; victim.core.Layer.forward = None"
    assert cli.main(["audit", "--json", "--", sys.executable, "-c", code]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["target"], change["kind"]) == ("victim.core.Layer.forward", "set to None")


def test_a_person_reads_groups(folder, capsys):
    assert cli.main(["audit", "--", sys.executable, "-c", "import patcher.patch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "patcher changes victim: 3 changed, 1 set to None, 1 setting, 1 added"
    assert "stale references to the original: 2" in lines


def test_files_that_cannot_be_read_are_listed(folder, capsys):
    package = folder / "patcher"
    (package / "linked.py").symlink_to("absent.py")
    (package / "loop").symlink_to("..")
    (package / "sum.py").write_text(f"import victim\nvictim.core.total = {'+'.join(['a'] * 3000)}\n")
    (package / "binary.py").write_bytes(b"x\0")
    assert cli.main(["audit", "--json", "--static", str(package), "--upstream", str(folder)]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [Path(one.partition(":")[0]).name for one in problems] == ["binary.py", "linked.py", "sum.py"]
    assert "cannot be read: No such file or directory" in problems[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND, --static: neither or both given, expected one"),
        (["--static", "nowhere"], "nowhere: is not a folder"),
        (["--", "no-such-command"], "no-such-command: No such file or directory, expected a command"),
        (["--", "true"], "true: no Python process ended normally (exit code 0)"),
    ],
)
def test_bad_input(folder, capsys, words, message):
    assert cli.main(["audit", *words]) in (1, 2)
    assert message in capsys.readouterr().err
