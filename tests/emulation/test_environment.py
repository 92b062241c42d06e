"""What stops a rehearsal before it starts, and the environment of its processes."""

from __future__ import annotations

import platform
import sys

import pytest

from ascend_adapt import probe
from ascend_adapt.emulation import MAX_DEVICES, build, environment
from ascend_adapt.errors import EmulationError


def refusal(environ=None):
    with pytest.raises(EmulationError) as caught:
        environment.prepare("910B", 1, {"PATH": "/nowhere"} if environ is None else environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_compiler():
    environ = {"CC": "no-such-compiler"}
    assert "no-such-compiler: not found on PATH, expected a C compiler" in refusal(environ)
    assert "install gcc, or set CC" in refusal(environ)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_another_platform(monkeypatch, system, machine):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert f"this is {system} on {machine}, expected Linux on x86_64 or aarch64" in refusal()


def test_a_machine_with_npus(monkeypatch):
    monkeypatch.setattr(probe, "device_nodes", lambda kind: ["davinci0"])
    assert "this host has NPUs (/dev/davinci0), expected none — use --device npu" in refusal()


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "ASCEND_HOME_PATH"])
def test_a_real_cann(tmp_path, variable):
    folder = tmp_path / "lib64"
    folder.mkdir()
    (folder / "libascendcl.so").write_bytes(b"\x7fELF a real one")
    value = folder if variable == "LD_LIBRARY_PATH" else tmp_path
    message = refusal({variable: str(value)})
    assert f"a real CANN is installed ({folder / 'libascendcl.so'})" in message
    assert "set_env.sh" in message


@pytest.mark.parametrize("version", ["", "8", "8.5", "newest", "8.5.0; rm"])
def test_a_version_of_cann_that_is_none(version):
    assert f"ASCEND_ADAPT_EMULATED_CANN: is {version!r}, expected a version" in refusal(
        {"ASCEND_ADAPT_EMULATED_CANN": version}
    )


@pytest.mark.parametrize("memory", ["100MB", "-5", "0", "", "1e9"])
def test_memory_that_is_not_an_integer(memory):
    message = refusal({"ASCEND_ADAPT_EMULATED_MEMORY": memory})
    assert f"ASCEND_ADAPT_EMULATED_MEMORY: is {memory!r}, expected a device's memory in bytes" in message


def test_more_devices_than_there_can_be():
    with pytest.raises(EmulationError, match="65 devices are requested, expected at most 64 — use a smaller --nproc"):
        environment.prepare("910B", 65, {})
    header = (build.SOURCES / "emulated.h").read_text()
    assert f"MAX_DEVICES = {MAX_DEVICES} " in header


@pytest.mark.parametrize(
    ("nproc", "environ", "devices"),
    [
        (None, {}, None),
        (None, {"ASCEND_RT_VISIBLE_DEVICES": "1"}, 2),
        (4, {}, 4),
        (2, {"ASCEND_RT_VISIBLE_DEVICES": "5,3"}, 6),
        (8, {"ASCEND_RT_VISIBLE_DEVICES": ""}, 8),
    ],
)
def test_how_many_devices(nproc, environ, devices):
    assert environment.count_devices(nproc, environ) == devices


def test_the_variables(emulated):
    env = emulated(devices=3, soc="910A", LD_LIBRARY_PATH="/users/lib", PYTHONPATH="/users/code")
    assert env["ASCEND_ADAPT_EMULATED_DEVICES"] == "3"
    assert env["ASCEND_ADAPT_EMULATED_SOC"] == "Ascend910A"
    assert env["LD_LIBRARY_PATH"].split(":")[1:] == ["/users/lib"]
    first, users, site = env["PYTHONPATH"].split(":")
    assert (first.endswith("bootstrap"), users, "torch_npu-" in site) == (True, "/users/code", True)
    assert env["ASCEND_OPP_PATH"] == env["ASCEND_HOME_PATH"] + "/opp"
