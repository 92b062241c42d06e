"""Each finding about the shell, the host and builds, and silence on a machine with which nothing is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_adapt.diagnosis import findings


def test_a_machine_with_which_nothing_is_wrong(machine):
    assert findings.examine(machine) == ()


@pytest.mark.parametrize(
    ("environ", "what", "must_fix"),
    [
        (
            {"PYTORCH_NPU_ALLOC_CONF": "x", "PYTORCH_ALLOC_CONF": "y"},
            "PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set",
            True,
        ),
        ({"ASCEND_ADAPT": "0"}, "ASCEND_ADAPT=0", False),
        ({"ASCEND_LAUNCH_BLOCKING": "1"}, "ASCEND_LAUNCH_BLOCKING=1", False),
        ({"TORCH_TRANSFER_TO_NPU": "1"}, "TORCH_TRANSFER_TO_NPU=1", False),
        ({"INF_NAN_MODE_ENABLE": "0"}, "INF_NAN_MODE_ENABLE=0", False),
        ({"RANK_TABLE_FILE": "/nowhere"}, "RANK_TABLE_FILE=/nowhere is not a file", True),
        ({"PYTHONPATH": "/x:"}, "PYTHONPATH='/x:' has an empty element", False),
    ],
)
def test_variables(environ, what, must_fix, machine):
    (found,) = findings.examine(replace(machine, environ=environ))
    assert found.what.startswith(what)
    assert found.must_fix is must_fix


@pytest.mark.parametrize(("kind", "name"), [("npu", "ASCEND_RT_VISIBLE_DEVICES"), ("cuda", "CUDA_VISIBLE_DEVICES")])
def test_visible_devices_that_are_not_there(kind, name, machine):
    nodes = {**machine.nodes, kind: (Path("/dev/0"), Path("/dev/1"))}
    found = findings.examine(replace(machine, nodes=nodes, environ={name: "0,2,3"}))
    assert [one.what for one in found if one.must_fix] == [f"{name} lists 2, 3, this host has 2 {kind} devices"]


def test_a_shell_script_with_windows_line_ends(machine):
    (machine.folder / "good.sh").write_bytes(b"echo x\n")
    (machine.folder / "run.sh").write_bytes(b"echo x\r\n")
    (found,) = findings.examine(machine)
    assert (found.what, found.must_fix) == ("run.sh has Windows line endings", True)
    # The cure is one.
    subprocess.run(["sh", "-c", found.do], cwd=machine.folder, check=True)
    assert findings.examine(machine) == ()


def test_a_lock_is_a_problem_unless_a_process_holds_it(machine):
    machine = replace(machine, now_s=time.time())
    lock = machine.extensions / "op" / "lock"
    lock.parent.mkdir()
    with lock.open("w"):
        os.utime(lock, (machine.now_s - 7200,) * 2)
        (found,) = findings.examine(machine)
        assert (found.what, found.must_fix) == (f"{lock} is 120 minutes old", False)
    (found,) = findings.examine(machine)
    assert (found.must_fix, found.do.split(",")[0]) == (True, f"rm {lock}")
    # Another host that shares the folder may have just begun.
    os.utime(lock)
    assert [one.must_fix for one in findings.examine(machine)] == [False]


def test_little_shared_memory(machine):
    (found,) = findings.examine(replace(machine, shm_bytes=64 << 20))
    assert found.what == "/dev/shm has 64 MiB"


@pytest.mark.parametrize("letter", ["n", "u"])
def test_low_limits(letter, machine):
    (found,) = findings.examine(replace(machine, limits={letter: 1024}))
    assert (found.what, found.must_fix) == (f"ulimit -{letter} is 1024", False)


def test_the_command_finds_the_script_and_exits_1(tmp_path):
    (tmp_path / "run.sh").write_bytes(b"echo x\r\n")
    doctor = [sys.executable, "-m", "ascend_adapt.cli", "doctor", "--device", "cpu"]
    run = subprocess.run(doctor, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert "must be fixed: run.sh has Windows line endings — " in run.stdout
