"""Which processes of a job record their patches, and under which names, when the launcher starts no ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt import probe
from ascend_adapt.launch.in_process.status_file import StatusFile
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.runtime import agreement

BIN = Path(sys.executable).parent

# Its data loader's workers and the process that it starts are adapted, but they are no programs of the job.
WITH_HELPERS = """
import subprocess, sys, toytarget
from torch.utils.data import DataLoader

if __name__ == "__main__":
    toytarget.answer()
    for context in ("fork", "spawn"):
        list(DataLoader([0, 1], num_workers=1, multiprocessing_context=context))
    subprocess.run([sys.executable, "-c", "import toytarget; print(toytarget.answer())"], check=True)
"""

# As PyTorch's tutorials: the rank is an argument, and no variable has it.
RANKS = """
import os, sys
if "DIFFERS" in os.environ:
    import importlib.metadata as metadata
    version = metadata.version
    metadata.version = lambda name: version(name) + (".1" if name == "torch" else "")
import torch, torch.multiprocessing as mp, torch.distributed as dist

def run(rank, how):
    import toytarget
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('store')}", rank=rank, world_size=2)
    x = torch.ones(1)
    dist.all_reduce(x)
    open(f"step.{rank}", "w").close()
    assert (x.item(), toytarget.answer()) == (2.0, "patched")
    dist.destroy_process_group()
    if how == "killed":
        os._exit(0)

if __name__ == "__main__":
    how, start_method = sys.argv[1:]
    if how == "differing":
        ranks = [mp.get_context(start_method).Process(target=run, args=(rank, how)) for rank in (0, 1)]
        for rank in ranks:
            rank.start()
            os.environ["DIFFERS"] = "1"
        for rank in ranks:
            rank.join()
        sys.exit(max(rank.exitcode for rank in ranks))
    mp.start_processes(run, (how,), nprocs=2, start_method=start_method)
"""


@pytest.fixture
def environ(toy):
    """Return the variables of a user's shell, in which this interpreter and the toy target are found."""
    return {"PYTHONPATH": toy, "PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture
def records(tmp_path):
    """Return a function that reads the status files of the run directory, by the word in their names."""

    def read():
        files = (tmp_path / "run").glob("adapt-status.*.json")
        return {file.name.split(".")[1]: json.loads(file.read_text()) for file in files}

    return read


def status(folder):
    command = [sys.executable, "-m", "ascend_adapt.cli", "status", "run"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def applied(record):
    return [one["patch"] for one in record["outcomes"] if one["state"] == "applied" and one["plugin"] == "toy"]


@pytest.mark.parametrize(
    "start",
    [["--once", "train.py"], ["bash", "-c", "python train.py; true"], ["python", "train.py"]],
    ids=["--once", "a shell script", "a command"],
)
def test_a_program_without_ranks_has_one_record(start, ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(WITH_HELPERS)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "adapt-status.p1.json").write_text("of an earlier run in this folder")
    job = ascend_run("--device", "cpu", "--log-dir", "run", *start, **environ)
    assert (job.returncode, job.stdout) == (0, "patched\n"), job.stderr
    ((name, record),) = records().items()
    assert (name, record["rank"]) == (f"p{record['pid']}", None)
    assert (applied(record), list(record["facts"])) == (["toy_answer", "toy_grow"], ["start", "first apply", "end"])
    assert record["until"] >= record["since"]
    shown = status(tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "status of 1 program in run; device cpu (as requested)" in shown.stdout
    assert re.search(r"toy.toy_answer +applied +toytarget:answer", shown.stdout)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_that_a_script_starts_have_records_under_their_ranks(start, ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    job = ascend_run("--device", "cpu", "--log-dir", "run", "--once", "train.py", "", start, **environ)
    assert job.returncode == 0, job.stderr
    found = records()
    (script,) = (name for name in found if name.startswith("p"))
    assert sorted(found) == ["0", "1", script]
    assert [found[name]["rank"] for name in ("0", "1")] == [0, 1]
    assert len({record["pid"] for record in found.values()}) == 3
    assert all(applied(found[rank]) == ["toy_answer", "toy_grow"] and found[rank]["until"] for rank in ("0", "1"))
    assert "status of 2 ranks in run" in status(tmp_path).stdout


def test_a_rank_that_is_killed_keeps_its_record_from_the_start(ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    job = ascend_run("--device", "cpu", "--log-dir", "run", "--once", "train.py", "killed", "spawn", **environ)
    assert job.returncode == 0, job.stderr
    assert [(records()[rank]["until"], applied(records()[rank])[0]) for rank in ("0", "1")] == [
        (None, "toy_answer")
    ] * 2


def test_ranks_that_a_script_starts_are_compared_before_their_first_step(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    job = ascend_run("--device", "cpu", "--log-dir", "run", "--once", "train.py", "differing", "spawn", **environ)
    assert job.returncode == 1
    assert "LaunchError: rank 1 differs from rank 0: torch is " in job.stderr
    assert list(tmp_path.glob("step.*")) == []
    assert "rank 1 differs from rank 0: torch is " in status(tmp_path).stderr


def test_a_command_that_starts_the_script_is_a_program_as_well(ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(WITH_HELPERS)
    command = ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "train.py"]
    job = ascend_run("--device", "cpu", "--log-dir", "run", *command, **environ)
    assert job.returncode == 0, job.stderr
    found = sorted(records().values(), key=lambda record: record["since"])
    assert [applied(record) for record in found] == [[], ["toy_answer", "toy_grow"]]
    shown = status(tmp_path).stdout
    assert "status of 2 programs in run" in shown
    assert re.search(r"toy.toy_answer +applied", shown)


def test_programs_with_the_same_rank_at_the_same_time_do_not_share_a_file(ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys, torch.distributed as dist\n"
        "store = f'file://{os.path.abspath(sys.argv[1])}'\n"
        "dist.init_process_group('gloo', init_method=store, rank=int(sys.argv[2]), world_size=2)\n"
        "open(f'came.{sys.argv[1]}.{sys.argv[2]}', 'w').close()\n"
        "import time\n"
        "while len([name for name in os.listdir() if name.startswith('came.')]) < 4: time.sleep(0.05)\n"
    )
    each = "; ".join(f"python train.py {job} {rank} &" for job in ("a", "b") for rank in (0, 1)).replace("&;", "&")
    job = ascend_run("--device", "cpu", "--log-dir", "run", "bash", "-c", f"{each} wait", **environ)
    assert job.returncode == 0, job.stderr
    found = records()
    assert {name for name in found if not name.startswith("p")} == {"0", "1"}
    assert all(name == f"p{record['pid']}" for name, record in found.items() if record["rank"] is None)
    assert all(record["until"] for record in found.values())


def test_a_launcher_that_is_taken_for_a_rank_does_not_overwrite_it(ascend_run, environ, records, tmp_path):
    """Some clusters set RANK once per host, so torchrun itself seems to be rank 0."""
    (tmp_path / "train.py").write_text(
        "import os, toytarget\nopen('pid.' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
    )
    (tmp_path / "start.py").write_text(
        "import toytarget\nfrom torch.distributed.run import main\nmain(['--nproc-per-node', '2', 'train.py'])\n"
    )
    ranks = {**environ, "RANK": "0", "WORLD_SIZE": "1"}
    job = ascend_run("--device", "cpu", "--log-dir", "run", "bash", "-c", "python start.py", **ranks)
    assert job.returncode == 0, job.stderr
    assert {name: str(record["pid"]) for name, record in records().items()} == {
        str(rank): (tmp_path / f"pid.{rank}").read_text() for rank in (0, 1)
    }


def test_a_group_of_one_is_no_rank(ascend_run, environ, records, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    )
    job = ascend_run("--device", "cpu", "--log-dir", "run", "--once", "train.py", **environ)
    assert job.returncode == 0, job.stderr
    ((name, record),) = records().items()
    assert (name, record["rank"]) == (f"p{record['pid']}", None)


def test_a_full_disk_does_not_end_a_program(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, shutil\nshutil.rmtree(os.environ['ASCEND_ADAPT_RUN_DIR'])\n"
        "open(os.environ['ASCEND_ADAPT_RUN_DIR'], 'w').close()\nimport toytarget; print(toytarget.answer())\n"
    )
    job = ascend_run("--device", "cpu", "--log-dir", "run", "bash", "-c", "python train.py", **environ)
    assert (job.returncode, job.stdout) == (0, "patched\n"), job.stderr
    assert "run: Not a directory, expected a writable folder with space left" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_file_in_use(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_JOB", "this")
    run_dir = RunDirectory(tmp_path)
    own = StatusFile(run_dir, 0)
    assert not own.is_in_use()
    own.write(agreement.START)
    assert own.may_write_again()
    assert not own.is_in_use()
    there = json.loads(own.path.read_text())
    for changed, in_use in (
        ({"pid": os.getppid()}, True),
        ({"pid": os.getppid(), "until": 1.0}, False),
        ({"pid": os.getppid(), "job": "another"}, False),
        ({"pid": 2**22 + 1}, False),
        ({"host": "another"}, True),
    ):
        own.path.write_text(json.dumps({**there, **changed}))
        assert own.is_in_use() == in_use, changed
        assert own.may_write_again() == ("job" in changed)


@pytest.mark.parametrize("damage", ["", "[]", "{}", "[" * 100000, '{"job": "this", "host": "h", "pid": [1]}'])
def test_a_damaged_file_is_not_in_use(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_JOB", "this")
    own = StatusFile(RunDirectory(tmp_path), 0)
    own.path.write_text(damage)
    assert not own.is_in_use()
    assert own.may_write_again()


def test_an_installed_entry_runs_the_users_script(monkeypatch):
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", "/venv/site-packages/ascend_adapt/launch/rank_entry.py", raising=False
    )
    assert not probe.runs_a_script()
    monkeypatch.setenv("ASCEND_ADAPT_RANK_PID", str(os.getpid()))
    assert probe.runs_a_script()
