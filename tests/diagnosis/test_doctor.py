from __future__ import annotations

import os

import pytest

from ascend_adapt import probe
from ascend_adapt.cli import main
from ascend_adapt.diagnosis import doctor


@pytest.fixture(autouse=True)
def one_plugin(monkeypatch):
    """Judging the patches of all plugins, which is not the subject here, parses much of DeepSpeed and transformers."""
    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "glm")


@pytest.fixture
def installed(monkeypatch):
    versions = {"torch": "2.13.0"}
    monkeypatch.setattr(probe, "distribution_version", versions.get)
    return versions


def reported(environ):
    return [
        finding.what
        for finding in doctor.examine({"ASCEND_ADAPT_PLUGINS": "glm", **environ}).findings
        if finding.must_fix
    ]


def test_a_lock_of_a_killed_build_is_found(installed, tmp_path):
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert reported(environ) == []
    os.utime(lock, (0, 0))
    assert reported(environ)[0].startswith(f"{lock} is ")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/h"}, "/h/.cache/torch_extensions"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
        ({"HOME": "/h", "TORCH_EXTENSIONS_DIR": "/t"}, "/t"),
    ],
)
def test_where_torch_builds_extensions(environ, folder):
    assert str(doctor._extensions_folder(environ)) == folder


def test_no_torch(installed, tmp_path):
    del installed["torch"]
    assert reported({"HOME": str(tmp_path)}) == ["torch is not installed"]


def test_both_allocator_settings(installed, tmp_path):
    both = {"PYTORCH_NPU_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:1"}
    assert reported({"HOME": str(tmp_path), **both}) == ["PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set"]


def test_the_command_exits_1_if_something_must_be_fixed(installed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("nothing must be fixed for a job on cpu\n")
    del installed["torch"]
    assert main(["doctor"]) == 1
    *_, problem, verdict = capsys.readouterr().out.splitlines()
    assert problem.startswith("must be fixed: torch is not installed")
    assert verdict == "1 problem must be fixed for a job on cpu"


def test_a_device_that_is_none(capsys, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_DEVICE", "tpu")
    assert main(["doctor"]) == 2
    assert "device 'tpu': expected auto, npu, cuda, npu-emulated, cpu" in capsys.readouterr().err
