"""What is missing for a job on NPUs, on a stand-in of a server that has them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import ascend_host
import pytest

from ascend_adapt import probe
from ascend_adapt.cli import main
from ascend_adapt.diagnosis import doctor, findings
from ascend_adapt.diagnosis.findings import Ran, npu


@pytest.fixture
def host(machine):
    """Return the stand-in as a machine, with which nothing is wrong."""
    environ = ascend_host.make(machine.root)
    nodes = tuple(machine.at(f"/dev/davinci{number}") for number in range(2))
    return replace(
        machine,
        device="npu",
        versions={"torch": "2.7.1+cpu", "torch_npu": "2.7.1"},
        nodes={"npu": nodes, "cuda": ()},
        environ=environ,
        tools={"npu-smi": Ran(0, ascend_host.NPU_SMI)},
    )


def without(machine, *paths):
    for path in paths:
        file = machine.at(path)
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


def the_one(machine):
    (found,) = findings.examine(machine)
    return found


def test_nothing_is_wrong(host):
    assert findings.examine(host) == ()
    assert npu.stack(host) == {
        "NPU driver": "24.1.rc3",
        "NPU firmware": "24.1.rc3",
        "CANN": f"8.3.RC1 in {ascend_host.TOOLKIT}",
    }


def test_no_driver(host):
    without(host, "/usr/local/Ascend/driver")
    found = the_one(host)
    assert found.what == "no NPU driver: /usr/local/Ascend/driver/version.info does not exist"
    assert found.must_fix


def test_a_driver_that_was_installed_elsewhere(host):
    host.at("/opt").mkdir()
    host.at("/usr/local/Ascend/driver").rename(host.at("/opt/driver"))
    host.at("/etc/ascend_install.info").write_text("Driver_Install_Path_Param=/opt\n")
    environ = {**host.environ, "LD_LIBRARY_PATH": f"{ascend_host.TOOLKIT}/lib64:/opt/driver/lib64/driver"}
    assert findings.examine(replace(host, environ=environ)) == ()


def test_the_driver_library_is_found_by_ldconfig_too(host):
    here = replace(host, environ={**host.environ, "LD_LIBRARY_PATH": f"{ascend_host.TOOLKIT}/lib64"})
    assert the_one(here).what == "the driver's libascend_hal.so is not on the library path"
    host.at("/etc/ld.so.conf.d").mkdir()
    host.at("/etc/ld.so.conf.d/ascend_driver_so.conf").write_text(f"{ascend_host.DRIVER_LIBRARIES}\n")
    assert findings.examine(here) == ()


@pytest.mark.parametrize(
    ("version", "count"), [("7.1.0.11.220", 0), ("6.4.3.1.1", 0), ("7.7.0.1.231", 1), ("6.3.0", 1)]
)
def test_firmware_must_be_within_what_the_driver_accepts(version, count, host):
    host.at("/usr/local/Ascend/firmware/version.info").write_text(f"Version={version}\n")
    found = findings.examine(host)
    assert [one.must_fix for one in found] == [True] * count


def test_a_container_has_no_firmware_folder(host):
    without(host, "/usr/local/Ascend/firmware")
    assert the_one(host).must_fix is False


@pytest.mark.parametrize(
    ("tool", "what", "must_fix"),
    [
        (None, "npu-smi is not on PATH", False),
        (
            Ran(255, "dcmi module initialize failed. ret is -8005\n"),
            "npu-smi info failed with exit code 255: dcmi module initialize failed. ret is -8005",
            True,
        ),
        (Ran(124, "no response in 20 s"), "npu-smi info failed with exit code 124: no response in 20 s", True),
        (
            Ran(
                0,
                ascend_host.NPU_SMI.replace(
                    "| 1     910B4               | OK     ", "| 1     910B4               | Alarm  "
                ),
            ),
            "npu-smi: NPU 1 is Alarm",
            True,
        ),
    ],
)
def test_npu_smi(tool, what, must_fix, host):
    found = the_one(replace(host, tools={"npu-smi": tool}))
    assert (found.what, found.must_fix) == (what, must_fix)


def test_nodes_that_are_not_there(host):
    without(host, "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/davinci0", "/dev/davinci1")
    found = the_one(replace(host, nodes={"npu": (), "cuda": ()}))
    assert found.what == "/dev/davinci<N>, /dev/devmm_svm, /dev/hisi_hdc: not found"
    assert found.do.endswith("--device=/dev/davinci0 --device=/dev/devmm_svm --device=/dev/hisi_hdc")
    assert found.must_fix


def test_nodes_of_a_group_that_the_user_is_not_in(host):
    stranger = replace(host, uid=os.getuid() + 4000, groups=frozenset({os.getgid() + 4000}))
    found = the_one(stranger)
    assert found.what.startswith(
        "/dev/davinci0, /dev/davinci1, /dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc: -rw-rw----"
    )
    assert "root HwHiAiUser, this user may not open them" in found.what
    assert found.do.startswith("usermod -aG HwHiAiUser <user>")
    assert found.must_fix
    assert findings.examine(replace(stranger, groups=frozenset({os.getgid()}))) == ()


def test_no_cann(host):
    without(host, "/usr/local/Ascend/ascend-toolkit")
    found = the_one(replace(host, environ={"LD_LIBRARY_PATH": ascend_host.DRIVER_LIBRARIES}))
    assert found.what.startswith(
        "CANN not found: ASCEND_HOME_PATH is not set, and CANN is not in /usr/local/Ascend/{cann,"
    )
    assert found.must_fix


def test_an_environment_script_that_is_not_sourced(host):
    found = the_one(replace(host, environ={"LD_LIBRARY_PATH": ascend_host.DRIVER_LIBRARIES}))
    assert found.what.startswith(f"CANN is in {ascend_host.TOOLKIT}, but its set_env.sh was not sourced")
    assert found.do == "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    assert found.must_fix


@pytest.mark.parametrize(
    ("changed", "what", "must_fix"),
    [
        ({"ASCEND_OPP_PATH": ""}, "ASCEND_HOME_PATH is set, but ASCEND_OPP_PATH is not", True),
        ({"ASCEND_OPP_PATH": "/nowhere"}, "ASCEND_OPP_PATH=/nowhere is not a folder", True),
        ({"ASCEND_HOME_PATH": "/nowhere"}, "ASCEND_HOME_PATH=/nowhere is not a folder", True),
        (
            {"LD_LIBRARY_PATH": ascend_host.DRIVER_LIBRARIES},
            "CANN's libascendcl.so is not on LD_LIBRARY_PATH",
            True,
        ),
    ],
)
def test_an_environment_that_is_set_by_hand(changed, what, must_fix, host):
    found = the_one(replace(host, environ={**host.environ, **changed}))
    assert (found.what, found.must_fix) == (what, must_fix)


def test_no_compiled_operators(host):
    without(host, f"{ascend_host.TOOLKIT}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b")
    found = the_one(host)
    assert found.what.startswith("no precompiled operators in /usr/local/Ascend/ascend-toolkit/latest/opp/built-in/")
    assert not found.must_fix


@pytest.mark.parametrize(
    ("torch_npu", "torch", "do", "must_fix"),
    [
        (None, "2.7.1+cpu", "pip install 'torch_npu==2.7.1'", True),
        (None, "2.5.1", "pip install 'torch_npu==2.5.1.*', the release for your CANN", True),
        ("2.7.1.post2", "2.7.1", "install CANN 8.5.0, or torch_npu==2.7.1", True),
        ("2.5.1", "2.5.1", "install CANN 8.1.RC1, or another torch_npu", False),
    ],
)
def test_the_torch_npu_for_this_torch_and_cann(torch_npu, torch, do, must_fix, host):
    installed = {name: version for name, version in (("torch", torch), ("torch_npu", torch_npu)) if version}
    found = the_one(replace(host, versions=installed))
    assert (found.do, found.must_fix) == (do, must_fix)


def test_cann_8_5_lies_elsewhere_and_older_ones_have_a_version_cfg(host):
    latest = host.at(ascend_host.TOOLKIT)
    (latest / "x86_64-linux" / "ascend_toolkit_install.info").unlink()
    assert npu.stack(host)["CANN"].startswith("8.3.RC1 in")
    info = host.at("/usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info")
    info.parent.mkdir(parents=True)
    info.write_text("version=8.5.0\n")
    here = replace(host, environ={})
    assert npu.stack(here)["CANN"] == "8.5.0 in /usr/local/Ascend/cann"


def test_doctor_runs_the_tools_and_reads_the_files_of_the_host(machine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    installed = {"torch": "2.7.1", "torch_npu": "2.7.1"}
    monkeypatch.setattr(probe, "distribution_version", installed.get)
    monkeypatch.setattr(probe, "root_folder", lambda module: None)
    monkeypatch.setattr(probe, "distributions", lambda: npu._PYTHON_OF_CANN)
    environ = {**ascend_host.make(machine.root), "PATH": f"{machine.at('/usr/local/bin')}:{os.environ['PATH']}"}
    environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path / "extensions")
    diagnosis = doctor.examine({**environ, "ASCEND_ADAPT_DEVICE": "npu"}, root=machine.root)
    assert (diagnosis.device, diagnosis.device_nodes["npu"]) == ("npu", 2)
    assert diagnosis.versions["NPU driver"] == "24.1.rc3"
    assert [one.what for one in diagnosis.findings if one.must_fix] == []
    machine.at("/usr/local/bin/npu-smi").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    diagnosis = doctor.examine(environ, "npu", machine.root)
    assert [one.what for one in diagnosis.findings if one.must_fix] == ["npu-smi info failed with exit code 3: broken"]


def test_doctor_of_a_host_without_npus_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_DEVICE", "npu")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("device: npu (as requested)")
    for what in ("no NPU driver: ", "/dev/davinci<N>, ", "CANN not found: ", "torch_npu is not installed"):
        assert f"must be fixed: {what}" in out


@pytest.mark.parametrize(
    ("numpy", "cann", "count"), [("2.0.2", "8.3.RC1", 1), ("1.26.4", "8.3.RC1", 0), ("2.0.2", "9.0.0", 0)]
)
def test_the_operator_compiler_of_an_older_cann_was_made_for_numpy_1(numpy, cann, count, host, monkeypatch):
    monkeypatch.setattr(npu, "_cann_version", lambda *_: cann)
    versions = {**host.versions, "numpy": numpy}
    packages = frozenset(("attrs", "cffi", "decorator", "numpy", "protobuf", "psutil", "pyyaml", "scipy", "sympy"))
    found = list(npu.python_of_cann(replace(host, versions=versions, distributions=packages)))
    assert [one.what for one in found] == [f"numpy {numpy} with CANN {cann}"] * count
