"""Commands and other launchers: started once, unchanged, and every Python below them is adapted."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ARGUMENTS = ["a b", "", "$HOME", '{"k": "v"}', "a;b", "--x=y z", "'"]
# As users write it: the rank from the environment or the argument, the target imported late.
RANK_SCRIPT = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
known, rest = parser.parse_known_args()
import toytarget
with open(f"reported.{known.local_rank}", "w") as reported:
    json.dump([os.environ.get("RANK"), rest, toytarget.answer()], reported)
"""

LAUNCHERS = {
    "torchrun": ["torchrun", "--nproc-per-node", "2", "train.py"],
    "python -m torch.distributed.run": ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"],
    "python -m torch.distributed.launch": [
        *("python", "-W", "ignore", "-m", "torch.distributed.launch", "--nproc-per-node", "2", "train.py")
    ],
    "deepspeed": ["deepspeed", "--num_gpus", "2", "--master_port", "0", "train.py"],
    "deepy.py": ["deepy.py", "train.py"],
}


@pytest.fixture
def environ(toy):
    """Return the variables of a user's shell in which the launchers are found."""
    return {"PYTHONPATH": toy, "PATH": f"{BIN}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu"}


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=[pytest.mark.every_case] if name.startswith("python -m") else []) for name in LAUNCHERS],
)
def test_ranks_below_another_launcher(launcher, ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(RANK_SCRIPT)
    # What GPT-NeoX's file of that name does: hand its arguments to DeepSpeed's runner.
    (tmp_path / "deepy.py").write_text(
        "import sys\nfrom deepspeed.launcher.runner import main\n"
        "main(['--num_gpus', '2', '--master_port', '0', *sys.argv[1:]])\n"
    )
    if launcher == "torchrun":  # as on a cluster that sets these for the whole machine
        environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    job = ascend_run("--log-dir", "run", *LAUNCHERS[launcher], *ARGUMENTS, **environ)
    assert job.returncode == 0, job.stderr
    assert ("starts ranks itself, so it is started once" in job.stderr) == (launcher == "deepy.py")
    reported = [json.loads((tmp_path / f"reported.{rank}").read_text()) for rank in (0, 1)]
    assert reported == [[str(rank), ARGUMENTS, "patched"] for rank in (0, 1)]
    statuses = sorted((tmp_path / "run").glob("adapt-status.[0-9]*.json"))
    assert [path.name for path in statuses] == ["adapt-status.0.json", "adapt-status.1.json"]
    assert [json.loads(path.read_text())["rank"] for path in statuses] == [0, 1]


def test_accelerate(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(RANK_SCRIPT)
    command = ["accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "train.py", *ARGUMENTS]
    job = ascend_run(*command, **environ)
    assert job.returncode == 0, job.stderr
    assert json.loads((tmp_path / "reported.-1").read_text()) == [None, ARGUMENTS, "patched"]


def test_workers_of_pytest_xdist(ascend_run, environ, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_it():\n    import toytarget\n"
        "    assert (toytarget.answer(), 'PYTEST_XDIST_WORKER' in os.environ) == ('patched', True)"
    )
    job = ascend_run("pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "test_it.py", **environ)
    assert job.returncode == 0, job.stdout + job.stderr


def test_a_shell_script_its_stdin_and_its_code(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text("import sys, toytarget; print(toytarget.answer(), sys.argv[1:])")
    (tmp_path / "run.sh").write_text(
        'python train.py "$@"\nenv | grep -c -E "^(RANK|WORLD_SIZE|MASTER_PORT)="\nexit 9\n'
    )
    job = ascend_run("bash", "run.sh", *ARGUMENTS, **environ)
    assert job.returncode == 9
    assert job.stdout == f"patched {ARGUMENTS}\n0\n"
    assert "ascend-run: bash ended with exit code 9\n" in job.stderr


def test_the_users_own_rank_variables_stay_under_a_command(ascend_run, environ):
    job = ascend_run("bash", "-c", "echo $RANK $MASTER_PORT $WORLD_SIZE", **environ, RANK="5", MASTER_PORT="77")
    assert job.stdout == "5 77\n"


SPAWNING = """
import os, socket, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def run(rank, count, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    x = torch.full((1,), rank + 1.0).cuda(rank)
    dist.all_reduce(x)
    if rank == 0:
        print("sum", x.item(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    count = torch.cuda.device_count()
    mp.spawn(run, (count, port), nprocs=count)
"""


def test_once_starts_the_script_without_ranks(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys, toytarget; print(toytarget.answer(), 'RANK' in os.environ, os.environ['LOCAL_SIZE'], sys.argv)"
    )
    job = ascend_run("--once", "--nproc", "4", "--master-port", "77", "train.py", "x", **environ)
    assert job.stdout == "patched False 4 ['train.py', 'x']\n", job.stderr
    assert "ascend-run: --master-port has no effect: train.py is started once\n" in job.stderr
    assert "--nproc has no effect" not in job.stderr


def test_a_script_that_spawns_its_ranks_finds_the_devices_and_starts_once(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(SPAWNING)
    job = ascend_run("--device", "cpu", "--nproc", "2", "train.py", **{**environ, "ASCEND_ADAPT_DEVICE": "cpu"})
    assert job.stdout == "sum 3.0\n", job.stderr
    assert "ascend-run: train.py starts ranks itself, so it is started once\n" in job.stderr


def test_a_command_in_dry_run(ascend_run, tmp_path):
    plan = json.loads(ascend_run("--dry-run", "--json", "bash", "-c", "exit 1").stdout)
    (only,) = plan["ranks"]
    assert (only["rank"], only["local_rank"], only["argv"]) == (None, None, ["bash", "-c", "exit 1"])
    assert "RANK" not in only["env"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("start", "why"),
    [
        (f"RANK=3 {sys.executable} -u -I", "its interpreter was started with -I"),
        (f"RANK=3 {sys.executable} -uE", "its interpreter was started with -E"),
        (f"RANK=3 {sys.executable} -S", "its interpreter was started with -S"),
        (f"env -i RANK=3 {sys.executable}", "its PYTHONPATH was cleared or overwritten"),
    ],
)
def test_a_rank_that_is_not_reached_is_named(start, why, strict, background, environ, tmp_path):
    (tmp_path / "train.py").write_text("open('ready', 'w').close()\nopen('go').read()")
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    flags = ["--strict"] if strict else []
    job = background(
        *("--log-dir", "run", *flags, "bash", "-c", f"{start} train.py; echo code $?"), env=environ, stderr=-1
    )
    if not strict:  # such a job may be ended before its script begins
        (tmp_path / "ready").open().close()
    while "is not adapted" not in (line := job.process.stderr.readline()):
        assert line, "the job ended without a word"
    assert line.startswith("ascend-run: rank 3 (pid ")
    assert why in line
    if not strict:
        (tmp_path / "go").open("w").close()
        assert job.lines(1) == ["code 0"]
    assert job.code() == (1 if strict else 0)
    assert why in json.loads((tmp_path / "run" / "job.json").read_text())["unreached"][0]


def test_a_rank_that_is_reached_is_not_named(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text("import select; select.select([], [], [], 1)")
    job = ascend_run("--strict", "bash", "-c", f"RANK=3 {sys.executable} -u train.py", **environ)
    assert job.returncode == 0, job.stderr
    assert "not adapted" not in job.stderr


FAILS_ON_RANK_1 = """
import os, sys
import toytarget
if os.environ["RANK"] == "1" and not os.path.exists("fixed"):
    open(os.environ["FIXES"], "w").close()
    raise ValueError("no such\\n corpus")
"""


def test_a_rank_that_a_command_hides_fails_the_job(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(FAILS_ON_RANK_1)
    command = f"{' '.join(LAUNCHERS['torchrun'])} 2>&1 | tee log.txt"
    job = ascend_run("bash", "-c", command, **environ, FIXES="unused")
    assert job.returncode == 1
    assert "ascend-run: bash ended with exit code 0, but rank 1 on " in job.stderr
    assert "failed: ValueError: no such corpus — exit code 1\n" in job.stderr


def test_a_rank_that_a_command_starts_again_does_not_fail_the_job(ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text(FAILS_ON_RANK_1)
    command = f"until {' '.join(LAUNCHERS['torchrun'])}; do true; done"
    job = ascend_run("bash", "-c", command, **environ, FIXES="fixed")
    assert job.returncode == 0, job.stderr
    assert (tmp_path / "fixed").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("--once", "train.py"),
        ("bash", "-c", "python -c 'import nothing' || true; python train.py"),
        ("bash", "-c", 'python -c \'import subprocess as s; s.run(["python", "train.py"], check=True)\''),
    ],
    ids=["once", "after a handled failure", "started by another program"],
)
def test_the_failure_of_a_process_that_is_no_rank_has_its_cause(command, ascend_run, environ, tmp_path):
    (tmp_path / "train.py").write_text("import missing_package\n")
    job = ascend_run(*command, **environ)
    assert job.returncode == 1
    error = "a process on \\S+ failed: ModuleNotFoundError: No module named 'missing_package'"
    assert re.search(f"^ascend-run: {error}$", job.stderr, re.MULTILINE), job.stderr
    assert "ascend-run: cause: the code imports missing_package, which is not installed" in job.stderr
