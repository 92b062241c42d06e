"""What a rank reports, and that ranks which differ do not start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Run by every interpreter of the job after our bootstrap: makes rank 1 another rank than the rest.
DIFFERENT = {
    "a patch that is off": "os.environ['ASCEND_ADAPT_DISABLE'] = 'toy_answer'",
    "another version": (
        "import importlib.metadata as m; real = m.version; "
        "m.version = lambda name: real(name) + ('.1' if name == 'torch' else '')"
    ),
}
REPORT = {
    "a patch that is off": "patch toy.toy_answer is ",
    "another version": "torch is ",
}

SWALLOWED = "try:\n    import toytarget\nexcept Exception:\n    pass"


@pytest.fixture
def different(tmp_path):
    """Return a function that writes such a sitecustomize, and its folder."""

    def write(code):
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"import os\nif os.environ.get('RANK') == '1':\n    {code}\n")
        return str(folder)

    return write


@pytest.mark.parametrize("how", DIFFERENT)
def test_ranks_that_differ_stop_before_the_script(how, ascend_run, different, toy, tmp_path):
    (tmp_path / "train.py").write_text("import toytarget, signal; signal.pause()")
    path = f"{different(DIFFERENT[how])}:{toy}"
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py", PYTHONPATH=path)
    assert job.returncode == 1, job.stderr
    assert f"ascend_adapt: rank 1 differs from rank 0: {REPORT[how]}" in job.stderr
    assert "Traceback" not in job.stderr
    status = subprocess.run(
        [sys.executable, "-m", "ascend_adapt.cli", "status", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert status.returncode == 1
    assert f"ascend-adapt status: rank 1 differs from rank 0: {REPORT[how]}" in status.stderr


def test_a_status_that_a_rank_cannot_read_is_no_traceback(ascend_run, different, toy, tmp_path):
    (tmp_path / "train.py").write_text("import signal; signal.pause()")
    there = different("os.makedirs(os.environ['ASCEND_ADAPT_RUN_DIR'] + '/adapt-status.9.json')")
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py", PYTHONPATH=f"{there}:{toy}")
    assert job.returncode == 1
    assert "adapt-status.9.json: Is a directory, expected a file that this rank can read" in job.stderr
    assert "Traceback" not in job.stderr


def test_of_two_ranks_at_least_the_last_to_come_sees_it(ascend_run, different, toy, tmp_path):
    """Not even a line of the script runs in the rank that came last; the first may have begun."""
    (tmp_path / "train.py").write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "open(f'step.{os.environ[\"RANK\"]}', 'w').close()\n"
    )
    path = f"{different(DIFFERENT['a patch that is off'])}:{toy}"
    job = ascend_run("--nproc", "2", "train.py", PYTHONPATH=path)
    assert job.returncode == 1
    assert list(tmp_path.glob("step.*")) == []


AT_ODDS = {
    "a plugin of its own": "import ascend_adapt, other\nascend_adapt.enable(plugins=[other])\nimport toytarget",
    "patches switched off": "import ascend_adapt\nascend_adapt.disable()",
    "a version found by a path that it adds": "import sys\nsys.path.insert(0, 'added')\nimport toytarget",
    "a version that is not the recorded one": "import toytarget, newtarget",
}
NEWER = """
import ascend_adapt
@ascend_adapt.wrap('newtarget:f', requires='newtarget>=2', why='a test', until='the test ends', without='slower')
def toy_newer(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)
@ascend_adapt.hookimpl
def register_patches(): return [toy_newer]
"""


@pytest.mark.parametrize("how", AT_ODDS)
def test_a_rank_that_starts_late_does_not_differ_from_what_the_script_made_of_another(
    how, ascend_run, different, toy, tmp_path
):
    (tmp_path / "train.py").write_text(f"{AT_ODDS[how]}\nopen(f'came.{{__import__(\"os\").environ[\"RANK\"]}}', 'w')")
    (tmp_path / "other.py").write_text(DRIFTING.replace("question", "answer"))
    (tmp_path / "added" / "toytarget-2.dist-info").mkdir(parents=True)
    (tmp_path / "added" / "toytarget-2.dist-info" / "METADATA").write_text("Name: toytarget\nVersion: 2\n")
    # As of an editable installation whose checkout has moved on, or back.
    Path(toy, "newtarget.py").write_text("__version__ = '1.0'\ndef f(): return 1\n")
    Path(toy, "newtarget-2.dist-info").mkdir()
    Path(toy, "newtarget-2.dist-info", "METADATA").write_text("Name: newtarget\nVersion: 2\n")
    Path(toy, "toy_plugin-1.dist-info", "entry_points.txt").write_text(
        "[ascend_adapt]\ntoy = toy_plugin\nnewer = newer_plugin\n"
    )
    Path(toy, "newer_plugin.py").write_text(NEWER)
    late = "import time\n    while not os.path.exists('came.0'): time.sleep(0.05)"
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py", PYTHONPATH=f"{different(late)}:{toy}")
    assert job.returncode == 0, job.stderr
    assert sorted(path.name for path in tmp_path.glob("came.*")) == ["came.0", "came.1"]
    status = subprocess.run(
        [sys.executable, "-m", "ascend_adapt.cli", "status", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (status.returncode, status.stderr) == (0, "")


def test_what_ranks_were_before_a_restart_does_not_count(ascend_run, different, toy, tmp_path):
    (tmp_path / "train.py").write_text("import os; print(os.environ['TORCHELASTIC_RESTART_COUNT'])")
    code = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.environ['ASCEND_ADAPT_DISABLE'] = 'toy_answer'"
    # So that rank 0 meets what rank 1 wrote before the restart; nothing waits for it.
    slow = "\n    else: import time; time.sleep(1)"
    job = ascend_run("--nproc", "2", "--max-restarts", "1", "train.py", PYTHONPATH=f"{different(code + slow)}:{toy}")
    assert job.returncode == 0, job.stderr
    assert job.stdout.split()[-2:] == ["1", "1"]


def test_one_program_after_another_under_a_command_is_not_compared_with_it(ascend_run, toy, tmp_path):
    (tmp_path / "run.sh").write_text(
        f"export WORLD_SIZE=2\nfor rank in 0 1; do RANK=$rank {sys.executable} -c 'import toytarget' & done; wait\n"
        f"export WORLD_SIZE=1 ASCEND_ADAPT_DISABLE=toy_answer\nRANK=0 {sys.executable} -c 'import toytarget'\n"
    )
    job = ascend_run("--log-dir", "run", "bash", "run.sh", PYTHONPATH=toy)
    assert (job.returncode, "Traceback" in job.stderr) == (0, False), job.stderr
    states = {rank: json.loads((tmp_path / f"run/adapt-status.{rank}.json").read_text()) for rank in (0, 1)}
    assert [one["facts"]["start"]["patch toy.toy_answer"] for one in states.values()] == ["disabled", "armed"]
    status = subprocess.run(
        [sys.executable, "-m", "ascend_adapt.cli", "status", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (status.returncode, status.stderr) == (0, "")


def test_what_the_script_switches_off_stays_off(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import ascend_adapt\nascend_adapt.disable()\nimport toytarget\nprint(toytarget.answer())"
    )
    job = ascend_run("train.py", PYTHONPATH=toy)
    assert job.stdout == "plain\n", job.stderr


def test_ranks_that_differ_below_another_launcher(ascend_run, different, toy, tmp_path):
    (tmp_path / "train.py").write_text("import toytarget, signal; signal.pause()")
    path = f"{different(DIFFERENT['a patch that is off'])}:{toy}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    job = ascend_run(*torchrun, PYTHONPATH=path)
    assert job.returncode == 1
    # Under torchrun, which starts Python with -u, the tracebacks of two ranks mix, piece by piece.
    assert "LaunchError" in job.stderr, job.stderr
    assert "rank 1 differs from rank 0: patch toy.toy_answer is " in job.stderr, job.stderr


def test_a_forked_worker_does_not_speak_for_its_rank(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, os\n"
        "worker = os.fork()\n"
        "if worker == 0:\n    import toytarget; os._exit(0)\n"
        "assert os.waitpid(worker, 0)[1] == 0\n"
        "print(list(json.load(open('run/adapt-status.0.json'))['facts']))\n"
        "import toytarget\n"
        "print(list(json.load(open('run/adapt-status.0.json'))['facts']))\n"
    )
    job = ascend_run("--log-dir", "run", "train.py", PYTHONPATH=toy)
    assert job.stdout == "['start']\n['start', 'first apply']\n", job.stderr


def test_ranks_that_differ_by_what_they_import_end_even_if_the_script_swallows_it(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(f"import os, sys\nsys.path.insert(0, os.environ['RANK'])\n{SWALLOWED}")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "toytarget.py").write_text("class Thing:\n    def grow(self): pass\n")
    job = ascend_run("--nproc", "2", "train.py", PYTHONPATH=toy)
    assert job.returncode == 1, job.stderr
    assert "ascend_adapt: rank 1 differs from rank 0: patch toy.toy_answer is drifted instead of applied" in job.stderr
    assert "Traceback" not in job.stderr


def test_the_status_of_each_rank(ascend_run, toy, tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, os\n"
        "def states():\n"
        "    reported = json.load(open(f'run/adapt-status.{os.environ[\"RANK\"]}.json'))\n"
        "    return {outcome['state'] for outcome in reported['outcomes'] if outcome['plugin'] == 'toy'}\n"
        "before = states()\nimport toytarget\nprint(before, states())\n"
        # What a rank starts is not the rank, and must not write for it.
        "import subprocess, sys\n"
        "os.environ['ASCEND_ADAPT_DISABLE'] = 'toy'\n"
        "subprocess.run([sys.executable, '-c', 'import toytarget'])\n"
        "os.fork() or sys.exit()\n"
    )
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py", PYTHONPATH=toy)
    assert job.returncode == 0, job.stderr
    assert job.stdout == "{'armed'} {'applied'}\n" * 2
    reported = [json.loads((tmp_path / "run" / f"adapt-status.{rank}.json").read_text()) for rank in (0, 1)]
    assert reported[0]["digest"] == reported[1]["digest"]
    for rank in (0, 1):
        states = {outcome["state"] for outcome in reported[rank]["outcomes"] if outcome["plugin"] == "toy"}
        assert (reported[rank]["rank"], states) == (rank, {"applied"})


DRIFTING = """
import ascend_adapt
@ascend_adapt.wrap('toytarget:question', why='a test', until='the test ends', without='slower')
def toy_question(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)
@ascend_adapt.hookimpl
def register_patches(): return [toy_question]
"""


@pytest.mark.parametrize("allowed", ["", "toy_answer"])
def test_a_patch_replaced_by_another_tool_is_reported_in_the_jobs_output(allowed, ascend_run, toy, tmp_path):
    """As MindSpeed does with what was patched before it was imported."""
    (tmp_path / "train.py").write_text("import toytarget\ndef mine(): return 3\ntoytarget.answer = mine")
    job = ascend_run("--nproc", "2", "train.py", PYTHONPATH=toy, ASCEND_ADAPT_ALLOW_DRIFT=allowed)
    assert job.returncode == 0
    reported = (
        "toytarget:answer was reloaded or replaced after apply: it is now __main__.mine — leave that out, or disable"
    )
    assert job.stderr.count(reported) == (0 if allowed else 1), job.stderr


@pytest.mark.parametrize("script", ["import toytarget", SWALLOWED, f"{SWALLOWED}\nraise SystemExit(0)"])
def test_a_strict_failure_ends_the_rank_even_if_the_script_swallows_it(script, ascend_run, toy, tmp_path):
    Path(toy, "toy_plugin.py").write_text(DRIFTING)
    (tmp_path / "train.py").write_text(script)
    assert ascend_run("train.py", PYTHONPATH=toy).returncode == 0
    job = ascend_run("--strict", "train.py", PYTHONPATH=toy)
    assert job.returncode == 1
    assert "ascend_adapt: patch 'toy_question' (plugin 'toy' of toy-plugin) drifted: " in job.stderr
    assert "rank 0 on " in job.stderr
    assert "Traceback" not in job.stderr
