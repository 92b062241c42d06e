"""What is told of a job that ran."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ascend_adapt import status_report
from ascend_adapt.status_report import NoStatus

OUTCOME = {
    "patch": "one",
    "plugin": "toy",
    "target": "toytarget:answer",
    "state": "applied",
    "reason": "",
    "requires": "",
    "found": "",
    "reversible": True,
    "evidence": [],
}


@pytest.fixture
def run_dir(tmp_path):
    """Return a function that writes the status of ranks, each with its version of torch."""

    def write(*versions):
        for rank, version in enumerate(versions):
            data = {"rank": rank, "device": "cpu", "device_reason": "as asked", "problems": [], "outcomes": [OUTCOME]}
            told = json.dumps({**data, "facts": {"start": {"torch": version}}})
            (tmp_path / f"adapt-status.{rank}.json").write_text(told)
        return tmp_path

    return write


def test_ranks_that_differ_are_named(run_dir):
    report = status_report.of_run(run_dir("2.13.0", "2.13.0", "2.12.0"))
    assert report.problems == ("rank 2 differs from rank 0: torch is 2.12.0, there 2.13.0",)
    assert report.outcomes[0].state == "applied"


def test_many_ranks_are_told_in_order(run_dir):
    report = status_report.of_run(run_dir(*["2.13.0"] * 12))
    assert (report.problems, report.subject[:13]) == ((), "what 12 ranks")


def test_ranks_that_were_not_reached_are_named(run_dir):
    folder = run_dir("2.13.0")
    (folder / "job.json").write_text(json.dumps({"unreached": ["rank 3 (pid 7): is not adapted"]}))
    assert status_report.of_run(folder).problems == ("rank 3 (pid 7): is not adapted",)


def test_a_job_of_which_no_rank_was_reached(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"unreached": ["rank 0 (pid 7): is not adapted"]}))
    assert status_report.of_run(tmp_path).problems == ("rank 0 (pid 7): is not adapted",)


def test_a_folder_without_a_status(tmp_path):
    with pytest.raises(NoStatus, match=r"holds no adapt-status\.<rank>\.json"):
        status_report.of_run(tmp_path)


def test_what_did_nothing_is_counted_and_shown_when_asked_for(run_dir, capsys):
    report = status_report.of_run(run_dir("2.13.0"))
    done = report.outcomes[0]
    states = {"never": "armed", "elsewhere": "skipped", "moved": "drifted"}
    others = tuple(replace(done, patch=name, state=state, reason=f"[{name}]") for name, state in states.items())
    report = replace(report, outcomes=(done, *others))
    status_report.show(report, short=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("toy.")] == [
        ["toy.moved", "drifted", "toytarget:answer"],
        ["toy.one", "applied", "toytarget:answer"],
    ]
    assert "    [moved]" in lines
    assert lines[-1] == (
        "and 1 armed (nothing imported what they are for) and 1 skipped (for another device, version or code base): "
        "without --short they are shown"
    )
    status_report.show(report)
    told = capsys.readouterr().out
    assert all(f"toy.{name} " in told for name in (*states, "one"))
    assert "--short" not in told


def test_lines_in_a_pipe_are_whole(run_dir, capsys):
    report = status_report.of_run(run_dir("2.13.0"))
    target = "a.module.of.an.upstream" * 20
    status_report.show(replace(report, outcomes=(replace(report.outcomes[0], target=target, reason="why " * 200),)))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].endswith(target)


@pytest.mark.parametrize("text", ["{", "{}", '{"rank": 0, "outcomes": [{"patch": "one"}]}'])
def test_a_damaged_status(text, tmp_path):
    (tmp_path / "adapt-status.0.json").write_text(text)
    with pytest.raises(NoStatus, match="is not a status file"):
        status_report.of_run(tmp_path)
