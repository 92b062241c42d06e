"""Each planted mistake is found at its line: `# kind: what` in a script of mistakes/ says what, and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ascend_adapt.emulation import finding

MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.py"))


@pytest.fixture(scope="module")
def mistaken(jobs):
    return jobs("mistakes.py", options=("--cuda-code", "off", "--annotate", "github")).check()


@pytest.mark.parametrize("script", MISTAKES, ids=lambda path: path.stem)
def test_a_mistake_is_found_at_its_line(mistaken, script):
    (planted,) = (
        (number, *marked.groups())
        for number, line in enumerate(script.read_text().splitlines(), 1)
        if (marked := re.search(r"  # ([\w -]+): (\S.*)$", line))
    )
    found = [
        (one["line"], one["kind"], one["what"])
        for one in mistaken.rehearsal["ranks"]["0"]["findings"]
        if one["file"] == str(script)
    ]
    assert planted in found
    # Nothing else in the script is called a mistake, but what the same line does as well.
    assert {line for line, _, _ in found} == {planted[0]}, found


def test_a_printed_tensor_is_one_finding(mistaken):
    """Its formatting converts to float64, selects by a mask, and reads values."""
    findings = mistaken.rehearsal["ranks"]["0"]["findings"]
    assert len([one for one in findings if one["file"].endswith("/printed.py")]) == 1


def test_the_summary_is_short_and_the_page_has_every_finding(mistaken):
    lines = [line for line in mistaken.stderr.splitlines() if line.startswith("ascend-run: ")]
    begin = next(index for index, line in enumerate(lines) if "rehearsal: torch_npu" in line)
    assert len(lines[begin:]) <= 25
    page = (mistaken.run_dir / "rehearsal.html").read_text()
    for script in MISTAKES:
        assert script.name in page
    annotations = [line for line in mistaken.stdout.splitlines() if line.startswith("::")]
    assert len(annotations) >= len(MISTAKES)
    assert any("mistakes/double.py,line=4,title=rehearsal%3A cast::" in line for line in annotations)


def test_what_costs_a_cluster_most_is_first():
    facts = {"steps": 2, "findings": []}
    for kind, count in ((finding.WAIT, 2), (finding.WAIT, 9), (finding.ON_THE_HOST, 1), (finding.LIMIT, 1)):
        place = {"file": f"{count}.py", "line": count}
        facts["findings"].append({"kind": kind, "what": "aten::x", **place, "count": count, "bytes": 0, "detail": ""})
    found = finding.merged([facts, {**facts, "steps": 4}])
    assert [(one.kind, one.count) for one in found] == [
        (finding.LIMIT, 1),
        (finding.ON_THE_HOST, 1),
        (finding.WAIT, 9),
        (finding.WAIT, 2),
    ]
    assert "4.5 times per optimizer step" in found[2].text()
