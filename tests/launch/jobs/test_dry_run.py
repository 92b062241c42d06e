"""`--dry-run` and the start agree: what a dry run accepts is started, what it refuses is refused in the same words."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from covering import EVERY_CASE
from launch.terminals import read_all, terminal

from ascend_adapt.launch import cli
from ascend_adapt.launch.jobs.show import described
from ascend_adapt.launch.many_hosts import launcher
from ascend_adapt.launch.one_host import runner

COMMAND_LINES = 200 if EVERY_CASE else 80
TARGETS = (
    *(
        ["train.py"],
        ["train.py", "--its", "own"],
        ["missing.py"],
        ["folder.py"],
        ["-m", "json.tool"],
        ["-m", "no_such"],
    ),
    *(["true"], ["no-such-command"], ["deepy.py", "a"], ["--once", "train.py"], []),
)
OPTIONS = (
    *(
        ["--nproc", "2"],
        ["--nproc", "1"],
        ["--nproc", "0"],
        ["--nproc", "1000"],
        ["--device", "npu"],
        ["--device", "cuda"],
    ),
    *(["-H", "hosts"], ["-H", "one_host"], ["-H", "missing"], ["-H", "bad_hosts"], ["-i", "w-1"], ["-e", "w-9"]),
    *(["--nnodes", "2"], ["--node-rank", "1"], ["--master-addr", "10.0.0.1"], ["--master-port", "29600"]),
    *(
        ["--max-restarts", "1"],
        ["--export", "HOME"],
        ["--export", "NOPE"],
        ["--launcher", "ssh"],
        ["--launcher", "pdsh"],
    ),
    *(
        ["--launcher", "pigeon"],
        ["--launcher", "local"],
        ["--strict"],
        ["--disable", "deepspeed"],
        ["--disable", "nothing"],
    ),
    *(
        ["--log-dir", "here"],
        ["--log-dir", "train.py/below"],
        ["--npu-compile-mode", "jit"],
        ["--no-adapt"],
        ["--compile"],
    ),
    *(["--profile", "1-2"], ["--numerics", "exact"], ["--pass-local-rank"], ["--container", "image"], ["--grace", "1"]),
    *(["--fallback", "native"], ["--allow-drift", "deepspeed"], ["--deterministic"]),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with scripts and hostfiles."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "deepy.py"):
        Path(name).write_text("print(1)\n")
    Path("folder.py").mkdir()
    Path("hosts").write_text("w-1 slots=2\nw-2.invalid slots=2\n")
    Path("one_host").write_text("localhost slots=2\n")
    Path("bad_hosts").write_text("w-1 lots=2\n")
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was started: instead of a guardian and of agents, which have tests of their own."""
    began: list[str] = []
    monkeypatch.setattr(runner, "run", lambda assignment: began.append("here") or 0)
    monkeypatch.setattr(launcher, "run", lambda assignment: began.append("hosts") or 0)
    return began


def outcome(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err


def generated(seed: int) -> list[str]:
    draw = random.Random(seed)
    options = [word for option in draw.sample(OPTIONS, draw.choice((0, 1, 1, 2, 2, 3))) for word in option]
    return ["--device", "cpu", *options, *draw.choice(TARGETS if draw.random() < 0.4 else TARGETS[:2])]


def test_a_dry_run_and_a_start_agree(folder, started, capsys):
    accepted, disagree = 0, []
    for seed in range(COMMAND_LINES):
        argv = generated(seed)
        dry, dry_words = outcome(["--dry-run", *argv], capsys)
        assert started == []
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN  # whoever called main() keeps Python's own handling
        code, words = outcome(argv, capsys)
        if (dry == 0) != bool(started) or (dry and (dry, dry_words) != (code, words)):
            disagree.append((argv, dry, dry_words, code, words, list(started)))
        accepted += dry == 0
        started.clear()
    assert disagree == []
    assert COMMAND_LINES // 5 < accepted < COMMAND_LINES * 4 // 5  # both kinds are among them


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (f"--log-dir={'x' * 5000}", r"run directory .*: File name too long — choose another with --log-dir"),
        (f"--record={'x' * 5000}", r"xxx: File name too long, expected a new folder — choose another"),
        ("--hostfile=--", r"argument --hostfile: expected one argument — see"),
        ("--export=--", r"argument --export: expected one argument — see"),
        (f"--nproc={'9' * 30}", r"argument --nproc/.*: '9+' is not an integer"),
        (f"--nproc={'9' * 18}", r"argument --nproc/.*: '9+' exceeds 1000000"),
        ("--nproc=²", r"argument --nproc/.*: '²' is not an integer"),
    ],
    ids=lambda text: text[:16],
)
def test_an_unusual_value_is_refused_in_one_line(option, why, folder, started, capsys):
    code, words = outcome(["--device", "cpu", option, "train.py"], capsys)
    assert code
    assert started == []
    assert re.match(rf"ascend-run: .*{why}.*\n$", words)


def test_a_port_on_which_another_job_listens_is_refused(folder, started, capsys):
    """All ranks but the first once joined that job."""
    with socket.create_server(("", 0)) as other:
        port = str(other.getsockname()[1])
        argv = ["--device", "cpu", "--nproc", "2", "--master-port", port, "train.py"]
        expected = (1, f"ascend-run: port {port}: is in use, expected a free one — choose another --master-port\n")
        assert outcome(argv, capsys) == outcome(["--dry-run", *argv], capsys) == expected
    assert started == []
    assert outcome(argv, capsys)[0] == 0
    assert started == ["here"]


def test_all_problems_of_a_command_line_are_reported_at_once(folder, capsys):
    code, words = outcome(["--export", "NOPE", "--launcher", "pigeon", "--compile", "missing.py"], capsys)
    assert code == 2
    for subject in ("--export NOPE", "--launcher pigeon", "--compile", "script 'missing.py'"):
        assert subject in words


def test_a_reader_that_has_seen_enough_ends_a_dry_run_quietly(folder):
    command = f"{sys.executable} -m ascend_adapt.launch.cli --dry-run --nproc 4 --device cpu train.py | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_a_terminal_shows_a_plan_for_a_person_and_a_pipe_gets_json(folder):
    dry_run = [sys.executable, "-m", "ascend_adapt.launch.cli", "--dry-run", "--device", "cpu", "train.py"]
    ours, theirs = terminal(100)
    with os.fdopen(ours), os.fdopen(theirs, "wb") as output:
        subprocess.run(dry_run, check=True, stdout=output)
        output.close()
        assert b"plan: 1 rank on 1 host, device cpu" in read_all(ours)
    piped = subprocess.run(dry_run, check=True, capture_output=True, text=True).stdout
    assert json.loads(piped)["world_size"] == 1


def test_a_plan_for_a_person():
    ranks = [
        {"host": host, "rank": rank, "device": "npu:0", "env": {"A": "1", "RANK": str(rank)}, "argv": ["python", "a b"]}
        for rank, host in enumerate(("w-1", "w-1", "w-2"))
    ]
    plan = {"world_size": 3, "master_addr": "w-1", "master_port": 29500, "ranks": ranks, "notes": ["slow"]}
    assert list(described(plan, "runs/x", {})) == [
        "plan: 3 ranks on 2 hosts, device npu",
        "rendezvous: w-1:29500",
        "command: python 'a b'",
        "run directory: runs/x",
        "host w-1: ranks 0 to 1",
        "host w-2: rank 2",
        "environment that differs from this shell:",
        "  A=1",
        "  different for each rank: RANK",
        "note: slow",
        "nothing was started",
    ]
