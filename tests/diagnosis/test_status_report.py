"""Status report of a job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

import ascend_adapt
import ascend_adapt_plugins
from ascend_adapt.diagnosis import status_report
from ascend_adapt.diagnosis.status_report import NoStatus

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
            data = {
                "rank": rank,
                "device": "cpu",
                "device_reason": "as requested",
                "problems": [],
                "outcomes": [OUTCOME],
            }
            text = json.dumps({**data, "facts": {"start": {"torch": version}}})
            (tmp_path / f"adapt-status.{rank}.json").write_text(text)
        return tmp_path

    return write


def test_ranks_that_differ_are_named(run_dir):
    report = status_report.of_run(run_dir("2.13.0", "2.13.0", "2.12.0"))
    assert report.problems == ("rank 2 differs from rank 0: torch is 2.12.0 instead of 2.13.0",)
    assert report.outcomes[0].state == "applied"


@pytest.fixture
def programs(tmp_path):
    """Return a function that writes the status of programs without ranks, each with the state of its patches."""

    def write(*states, job="this"):
        for number, by_patch in enumerate(states):
            outcomes = [{**OUTCOME, "patch": patch, "state": state} for patch, state in by_patch.items()]
            data = {"rank": None, "job": job, "device": "cpu", "device_reason": "as requested", "since": float(number)}
            text = json.dumps({**data, "outcomes": outcomes, "facts": {"start": {"torch": f"2.{number}"}}})
            (tmp_path / f"adapt-status.p{90 - number}.json").write_text(text)
        return tmp_path

    return write


def test_programs_without_ranks_are_combined_and_not_compared(programs):
    folder = programs(
        {"one": "armed", "two": "applied", "three": "armed", "four": "armed"},
        {"one": "applied", "two": "drifted", "three": "armed", "five": "skipped"},
        {"one": "not_needed", "two": "applied"},
    )
    report = status_report.of_run(folder)
    assert (report.subject, report.problems) == (f"status of 3 programs in {folder}; device cpu (as requested)", ())
    assert [(one.patch, one.state) for one in report.outcomes] == [
        ("one", "applied"),
        ("two", "drifted"),
        ("three", "armed"),
        ("four", "armed"),
        ("five", "skipped"),
    ]


def test_what_only_the_second_program_reports_is_shown(programs):
    folder = programs({"one": "armed"}, {"one": "applied"})
    file = folder / "adapt-status.p89.json"
    more = {"beside": ["a patcher"], "programs": ["train.py uses CUDA"], "problems": ["plugin 'x': is broken"]}
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    report = status_report.of_run(folder)
    assert report.subject.endswith("; together with a patcher; train.py uses CUDA")
    assert report.problems == ("plugin 'x': is broken",)


def test_a_job_without_an_adapted_process(tmp_path):
    (tmp_path / "job.json").write_text("{}")
    report = status_report.of_run(tmp_path)
    assert report.subject == f"no status: no process of {tmp_path} has imported a package that has patches"
    assert (report.outcomes, report.problems) == ((), ())


def test_of_programs_only_those_since_the_last_restart_count(programs):
    folder = programs({"one": "drifted"}, {"one": "armed"})
    (folder / "adapt-status.p90.json").write_text(
        (folder / "adapt-status.p90.json").read_text().replace('"this"', '"the one before"')
    )
    assert [one.state for one in status_report.of_run(folder).outcomes] == ["armed"]


def test_programs_do_not_count_if_there_are_ranks(programs, run_dir):
    programs({"one": "drifted"})
    report = status_report.of_run(run_dir("2.13.0", "2.13.0"))
    assert (report.subject[:17], [one.state for one in report.outcomes]) == ("status of 2 ranks", ["applied"])


def test_many_ranks_are_reported_in_order(run_dir):
    report = status_report.of_run(run_dir(*["2.13.0"] * 12))
    assert (report.problems, report.subject[:18]) == ((), "status of 12 ranks")


def test_ranks_that_were_not_reached_are_named(run_dir):
    folder = run_dir("2.13.0")
    (folder / "job.json").write_text(json.dumps({"unreached": ["rank 3 (pid 7): is not adapted"]}))
    assert status_report.of_run(folder).problems == ("rank 3 (pid 7): is not adapted",)


def test_a_job_of_which_no_rank_was_reached(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"unreached": ["rank 0 (pid 7): is not adapted"]}))
    assert status_report.of_run(tmp_path).problems == ("rank 0 (pid 7): is not adapted",)


@pytest.mark.parametrize("damaged", [b"\xff", b"[]", b'{"failure": 3}', b'{"failure": ["rank 0 on'])
def test_a_damaged_job_file_is_not_taken_for_a_job_without_a_failure(run_dir, damaged):
    folder = run_dir("2.13.0")
    (folder / "job.json").write_bytes(damaged)
    (problem,) = status_report.of_run(folder).problems
    assert re.search(r"job\.json: is not a job file \(.*\) — remove it$", problem)


def test_a_folder_without_a_status(tmp_path):
    with pytest.raises(NoStatus, match=r"has no adapt-status\.<rank>\.json"):
        status_report.of_run(tmp_path)


def printed(capsys, report, **options):
    status_report.show(report, **options)
    return capsys.readouterr().out.splitlines()


def names(lines):
    return [line.split()[0] for line in lines if line.startswith("toy.")]


@pytest.fixture
def eventful(run_dir):
    """Return the report of a job in which one patch was applied, one drifted, and two had nothing to do."""
    report = status_report.of_run(run_dir("2.13.0"))
    done = replace(report.outcomes[0], why="it is wrong", until="it is right", without="crash")
    states = {"never": "armed", "elsewhere": "skipped", "moved": "drifted"}
    others = (replace(done, patch=name, state=state, reason=f"[{name}]") for name, state in states.items())
    return replace(report, outcomes=(done, *others))


def test_a_job_is_summed_up_before_what_was_applied_and_what_needs_attention(eventful, capsys):
    lines = printed(capsys, eventful)
    assert lines[0] == ("4 patches: 1 applied, 1 NEED ATTENTION, 1 armed, 1 for another device, version or code base")
    assert lines[1].startswith("status of 1 rank in ")
    assert lines[2].split() == ["toy.moved", "drifted", "toytarget:answer"]
    assert lines[3:5] == ["    [moved]", "    crash without it: it is wrong"]
    assert lines[5].split() == ["toy.one", "applied", "toytarget:answer"]
    assert lines[-1] == "--all shows every patch, with its versions and evidence"


def test_how_much_is_shown(eventful, capsys):
    assert names(printed(capsys, eventful, short=True)) == ["toy.moved"]
    lines = printed(capsys, eventful, all_=True)
    assert names(lines) == ["toy.moved", "toy.one", "toy.never", "toy.elsewhere"]
    assert "    until it is right; evidence none for these versions" in lines
    assert "--all" not in lines[-1]


def test_the_failure_of_a_job_is_not_followed_by_what_worked(eventful, capsys):
    failed = replace(eventful, failure=("rank 0 failed first",))
    lines = printed(capsys, failed)
    assert lines[2] == "rank 0 failed first"
    assert names(lines) == ["toy.moved"]
    assert names(printed(capsys, failed, all_=True)) == ["toy.moved", "toy.one", "toy.never", "toy.elsewhere"]


def test_a_reason_that_patches_share_is_printed_once(eventful, capsys):
    one = eventful.outcomes[0]
    shared = replace(eventful, outcomes=(one, replace(one, patch="two"), replace(one, patch="three", why="it is slow")))
    lines = printed(capsys, shared)
    assert [line.split()[0] if line.startswith("toy.") else line for line in lines[2:]] == [
        "toy.one",
        "toy.two",
        "    crash without it: it is wrong",
        "toy.three",
        "    crash without it: it is slow",
    ]
    assert printed(capsys, shared, all_=True).count("    crash without it: it is wrong") == 2


def test_json_says_why_a_patch_exists_and_until_when():
    report = status_report.of_installation()
    for one in json.loads(json.dumps(report.to_json()))["outcomes"]:
        assert one["why"], one
        assert one["until"], one
        assert one["without"] in ("crash", "wrong numbers", "slower"), one
    assert 0 < len(report.applying) < len(report.outcomes)


def test_without_any_upstream_status_is_a_few_lines(tmp_path):
    """The site-packages of this environment, as links, without torch, the upstreams, and what is built on them."""
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if re.match(r"(torch|deepspeed|megatron|transformers|accelerate|peft|numpy)", path.name) is None:
            (tmp_path / path.name).symlink_to(path)
    for name, package in (("ascend_adapt", ascend_adapt), ("ascend_adapt_plugins", ascend_adapt_plugins)):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(Path(package.__file__).parent)
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from ascend_adapt.cli import main; main(['status'])"
    job = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, cwd=tmp_path)
    assert job.stderr == ""
    first, *rest = job.stdout.splitlines()
    assert re.match(r"\d{3} patches: 0 would be applied, \d+ armed, ", first)
    assert len(rest) < 5


def test_lines_in_a_pipe_are_whole(run_dir, capsys):
    report = status_report.of_run(run_dir("2.13.0"))
    target = "a.module.of.an.upstream" * 20
    lines = printed(
        capsys, replace(report, outcomes=(replace(report.outcomes[0], target=target, reason="why " * 200),))
    )
    assert len(lines) == 4
    assert lines[2].endswith(target)


@pytest.mark.parametrize("text", ["{", "{}", '{"rank": 0, "outcomes": [{"patch": "one"}]}'])
def test_a_damaged_status(text, tmp_path):
    (tmp_path / "adapt-status.0.json").write_text(text)
    with pytest.raises(NoStatus, match="is not a status file"):
        status_report.of_run(tmp_path)


CHANGES = [
    {"facts": {}},
    {"facts": {"start": 3}},
    {"device": None, "device_reason": ...},
    {"device": ...},
    {"problems": 3},
    {"programs": 3},
    {"beside": [3]},
    {"since": "now", "until": "then"},
    {"outcomes": [{**OUTCOME, "found": None}]},
    {"outcomes": [{**OUTCOME, "state": None}]},
    {"rank": "first"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_status_of_another_shape(change, run_dir):
    file = run_dir("2.13.0", "2.13.0") / "adapt-status.0.json"
    changed = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({name: value for name, value in changed.items() if value is not ...}))
    report = status_report.of_run(file.parent)
    assert report.subject.startswith("status of 1 rank in")
    assert [one for one in report.problems if one.startswith(f"{file}: is not a status file (")] == list(
        report.problems
    )
    assert len(report.problems) == 1
