"""What the documents say can be done."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ascend_adapt
from ascend_adapt.diagnosis import findings, status_report
from ascend_adapt.runtime.plugin_manager import PluginManager

ROOT = Path(__file__).parents[1]


def code_blocks(path, language):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_the_plugin_in_the_docs_is_a_plugin(monkeypatch):
    (source,) = code_blocks("docs/patches.md", "python")
    plugin = ModuleType("documented_plugin")
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    exec(source, vars(plugin))
    with ascend_adapt.enabled(plugins=[plugin], device="cpu") as status:
        states = {o.patch: o.state for o in status.outcomes if o.plugin == "documented_plugin"}
    assert states == {
        "eval_batch_without_logits": "skipped",
        "set_has_attention_mask": "skipped",
        "keep_missing_grads": "skipped",
        "skip_extension_check": "armed",
    }
    assert len(source.splitlines()) <= 50


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "README.zh-CN.md",
        "CONTRIBUTING.md",
        *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "examples").rglob("README.md")),
        *sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_lead_somewhere(path):
    file = ROOT / "docs" / path if (ROOT / "docs" / path).exists() else ROOT / path
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", file.read_text()):
        page = file.parent / target if target else file
        assert page.exists(), target
        assert not heading or heading in anchors(page), f"{target}#{heading}"


def anchors(page):
    """Return the anchors of a page's headings, as code hosting sites make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_kind_and_state_is_documented():
    from ascend_adapt.patches.declare.outcome import STATES

    text = (ROOT / "docs" / "patches.md").read_text()
    for kind in ("wrap", "replace", "rewrite", "add", "provide", "entry"):
        assert f"| `{kind}(" in text
    for state in STATES:
        assert f"`{state}`" in text


def test_every_switch_is_documented():
    source = (ROOT / "ascend_adapt" / "runtime" / "settings.py").read_text()
    text = (ROOT / "docs" / "commands.md").read_text()
    for name in re.findall(r'(?:variable|words)\("([A-Z_]+)"\)', source):
        assert f"ASCEND_ADAPT_{name}" in text, name


def test_ci_runs_the_commands_of_the_readme():
    (commands,) = [block for block in code_blocks("README.md", "") if "make test" in block]
    assert commands.split() == ["make", "demo", "make", "test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_quoted_output_of_status_is_what_it_prints():
    (quoted,) = [block for block in code_blocks("docs/how-it-works.md", "") if "applied" in block]
    patches = {one.full_name: one for one in PluginManager().patches()}
    outcomes = tuple(patches[name].outcome("applied", "") for name in re.findall(r"(?m)^(\S+)", quoted))
    assert len(outcomes) == 2
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status_report.show(status_report.Report("a job", outcomes))
    assert printed.getvalue().splitlines()[2:] == quoted.splitlines()


def test_every_device_of_doctor_is_documented():
    text = (ROOT / "docs" / "doctor.md").read_text()
    for device in findings.OF_A_DEVICE:
        assert device == "cpu" or f"| `{device}` |" in text
