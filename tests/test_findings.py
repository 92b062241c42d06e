"""Each finding on a machine that has it, and silence on one that has not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ascend_adapt import findings
from ascend_adapt.findings import Machine


@pytest.fixture
def machine(tmp_path):
    """Return a machine with which nothing is wrong: two NPUs, and what belongs to them."""
    for name in ("cann", "opp", "extensions", "work", "dev"):
        (tmp_path / name).mkdir()
    nodes = []
    for name in ("davinci0", "davinci1"):
        (tmp_path / "dev" / name).touch()
        nodes.append(tmp_path / "dev" / name)
    return Machine(
        device="npu",
        versions={"torch": "2.7.1+cpu", "torch_npu": "2.7.1.post1", "deepspeed": "0.16.9", "numpy": "1.26"},
        nodes={"npu": tuple(nodes), "cuda": ()},
        environ={"ASCEND_HOME_PATH": str(tmp_path / "cann"), "ASCEND_OPP_PATH": str(tmp_path / "opp")},
        folder=tmp_path / "work",
        extensions=tmp_path / "extensions",
        now_s=10_000.0,
        shm_bytes=1 << 34,
    )


def test_a_machine_with_which_nothing_is_wrong(machine):
    assert findings.examine(machine) == ()


@pytest.mark.parametrize(
    ("versions", "environ", "what", "must_fix"),
    [
        ({"torch": None}, {}, "torch is not installed", True),
        ({"deepspeed": "0.9.2"}, {}, "deepspeed 0.9.2", True),
        ({"deepspeed": "0.12.6"}, {"DS_ACCELERATOR": "cpu"}, "deepspeed 0.12.6, DS_ACCELERATOR=cpu", True),
        ({"setuptools": "84.2.1"}, {}, "setuptools 84.2.1", False),
        ({"deepspeed": "0.19.8"}, {}, "deepspeed 0.19.8", False),
        ({"torch_npu": "2.6.0"}, {}, "torch_npu 2.6.0 with torch 2.7.1+cpu", True),
        ({}, {"ASCEND_HOME_PATH": ""}, "torch_npu is installed, but ASCEND_HOME_PATH is not set", True),
        ({}, {"ASCEND_OPP_PATH": ""}, "ASCEND_HOME_PATH is set, but ASCEND_OPP_PATH is not", True),
        ({}, {"ASCEND_OPP_PATH": "/nowhere"}, "ASCEND_OPP_PATH=/nowhere is not a folder", True),
        ({"torch_npu": None}, {}, "2 NPU device nodes, but torch_npu is not installed", False),
        ({}, {"ASCEND_RT_VISIBLE_DEVICES": "0,2,3"}, "ASCEND_RT_VISIBLE_DEVICES names 2, 3, this machine has 2", True),
        (
            {},
            {"PYTORCH_NPU_ALLOC_CONF": "x", "PYTORCH_ALLOC_CONF": "y"},
            "PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set",
            True,
        ),
        ({}, {"ASCEND_ADAPT": "0"}, "ASCEND_ADAPT=0", False),
        ({}, {"ASCEND_LAUNCH_BLOCKING": "1"}, "ASCEND_LAUNCH_BLOCKING=1", False),
        ({}, {"TORCH_TRANSFER_TO_NPU": "1"}, "TORCH_TRANSFER_TO_NPU=1", False),
        ({}, {"INF_NAN_MODE_ENABLE": "0"}, "INF_NAN_MODE_ENABLE=0", False),
        ({}, {"RANK_TABLE_FILE": "/nowhere"}, "RANK_TABLE_FILE=/nowhere is not a file", True),
        ({}, {"PYTHONPATH": "/x:"}, "PYTHONPATH='/x:' has an empty element", False),
    ],
)
def test_versions_and_variables(versions, environ, what, must_fix, machine):
    installed = {**machine.versions, **versions}
    machine = replace(
        machine,
        versions={name: version for name, version in installed.items() if version is not None},
        environ={**machine.environ, **environ},
    )
    (found,) = findings.examine(machine)
    assert found.what.startswith(what)
    assert found.must_fix is must_fix
    assert found.why
    assert found.do


@pytest.mark.parametrize(
    ("versions", "count"),
    [({"deepspeed": "0.9.2", "pydantic": "2.1", "numpy": "2.0"}, 3), ({"deepspeed": "0.6.0", "pydantic": "1.9"}, 2)],
)
def test_combinations_of_versions(versions, count, machine):
    assert len(findings.examine(replace(machine, versions={**machine.versions, **versions}))) == count


def test_a_version_that_is_none(machine):
    assert findings.examine(replace(machine, versions={**machine.versions, "deepspeed": "unknown"})) == ()


def test_a_shell_script_with_windows_line_ends(machine):
    (machine.folder / "good.sh").write_bytes(b"echo x\n")
    (machine.folder / "run.sh").write_bytes(b"echo x\r\n")
    (found,) = findings.examine(machine)
    assert (found.what, found.must_fix) == ("run.sh has Windows line ends", True)
    # The cure is one.
    subprocess.run(["sh", "-c", found.do], cwd=machine.folder, check=True)
    assert findings.examine(machine) == ()


def test_a_lock_that_a_killed_build_left(machine):
    lock = machine.extensions / "op" / "lock"
    lock.parent.mkdir()
    lock.touch()
    for age_s, told in ((30, False), (1200, True)):
        os.utime(lock, (machine.now_s - age_s,) * 2)
        (found,) = findings.examine(machine)
        assert found.must_fix is told


def test_little_shared_memory(machine):
    (found,) = findings.examine(replace(machine, shm_bytes=64 << 20))
    assert found.what == "/dev/shm has 64 MiB"


def test_the_command_finds_the_script_and_exits_1(tmp_path):
    (tmp_path / "run.sh").write_bytes(b"echo x\r\n")
    doctor = [sys.executable, "-m", "ascend_adapt.cli", "doctor"]
    run = subprocess.run(doctor, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert "must be fixed: run.sh has Windows line ends — " in run.stdout
