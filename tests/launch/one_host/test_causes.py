"""The last lines of a failed job name its cause."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ascend_adapt.diagnosis import status_report
from ascend_adapt.launch.one_host import causes
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.moment import Moment
from ascend_adapt.launch.one_host.run_directory import RunDirectory

SCRIPT = "def main():\n    from flash_attn import flash_attn_func\n\nmain()\n"
CAUSE = "ascend-run: cause: the code requires the package flash_attn"


@pytest.fixture
def failed(tmp_path):
    """Return a function that runs a failing script under ascend-run and returns its last lines."""
    (tmp_path / "fail.py").write_text(SCRIPT)

    def last_lines(*command):
        # For CUDA code flash_attn would be provided.
        options = ["--log-dir", "run", "--device", "cpu", "--cuda-code", "off"]
        argv = [sys.executable, "-m", "ascend_adapt.launch.cli", *options, *command]
        ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        return ran.stderr.splitlines()[-4:]

    return last_lines


def test_a_failed_rank_ends_with_cause_and_next_step(failed, tmp_path):
    *_, first, cause, step = failed("fail.py")
    assert "rank 0" in first
    assert cause.startswith(CAUSE)
    assert cause.endswith("(called from fail.py:2: from flash_attn import flash_attn_func)")
    assert step.startswith("ascend-run: next step: ")


def test_ranks_of_a_command_end_with_cause_and_next_step(failed):
    ended, first, cause, _ = failed("env", "RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", sys.executable, "fail.py")
    assert ended.endswith("env ended with exit code 1")
    assert first.startswith("ascend-run: rank 1 on ")
    assert cause.startswith(CAUSE)


def test_status_of_a_failed_job_says_why_and_what_to_do(failed, tmp_path):
    failed("fail.py")
    first, cause, step = status_report.of_run(tmp_path / "run").failure
    assert first.startswith("rank 0 on ")
    assert cause.startswith("cause: the code requires the package flash_attn")
    assert step.startswith("next step: ")


def test_status_without_a_known_cause_names_the_log_and_the_next_step(failed, tmp_path):
    (tmp_path / "fail.py").write_text("raise ValueError('my own')\n")
    failed("fail.py")
    first, step = status_report.of_run(tmp_path / "run").failure
    assert first.endswith(f"its log: {tmp_path / 'run' / 'rank-0.log'}")
    assert step.startswith(f"next step: `ascend-adapt explain {tmp_path / 'run'}`")


def test_a_pipe_that_hides_a_failure_does_not_hide_its_cause(failed, tmp_path):
    script = f"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 {sys.executable} fail.py | cat"
    ended, _, cause, _ = failed("bash", "-c", script)
    assert "bash ended with exit code 0, but rank 0" in ended
    assert cause.startswith(CAUSE)
    assert status_report.of_run(tmp_path / "run").failure[0] == ended.removeprefix("ascend-run: ")


def test_a_log_that_shows_nothing_known_has_no_cause(tmp_path):
    (tmp_path / "rank-0.log").write_text("ValueError: my own\n")
    assert (
        causes.of_failure(RunDirectory(tmp_path), Failure(0, Moment.now(), 1, "ValueError: my own"), Moment.now(), {})
        == ""
    )
