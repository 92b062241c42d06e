"""Hosts judged from what `doctor --collect` wrote there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import ascend_host
import pytest

from ascend_adapt.cli import main
from ascend_adapt.diagnosis import collect, host_reports

PYTHON_OF_CANN = dict.fromkeys(("attrs", "cffi", "decorator", "protobuf", "psutil", "PyYAML", "scipy", "sympy"), "1")
VERSIONS = {"torch": "2.7.1", "torch_npu": "2.7.1", "numpy": "1.26.4", **PYTHON_OF_CANN}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that collects a stand-in for a healthy server, with changes, and returns the file."""
    environ = ascend_host.make(tmp_path / "host")
    environ["PATH"] = str(tmp_path / "host/usr/local/bin")
    monkeypatch.setenv("PATH", environ["PATH"], prepend=":")

    def collected(name="a", **changes):
        data = collect.collect(environ, str(tmp_path / "host"))
        data |= {"host": name, "versions": VERSIONS, "limits": {"n": 65536, "u": None, "l": None}, "shm_bytes": 1 << 34}
        data |= changes
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(data))
        return file

    return collected


def test_a_healthy_host_has_no_findings(host, capsys):
    assert main(["doctor", "--report", str(host())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a: npu, NPU driver 24.1.rc3, NPU firmware 24.1.rc3, CANN 8.3.RC1 in ")
    assert lines[1:] == ["nothing must be fixed"]


def test_what_is_wrong_with_a_host_is_judged_elsewhere(host):
    without = {name: version for name, version in VERSIONS.items() if name != "decorator"}
    errors = {"/root/ascend/log/p.log": ["[ERROR] EJ0001: Failed to initialize the HCCP process."]}
    nodes = {"/dev/davinci0": {"open": False, "owner": "crw-rw---- root HwHiAiUser"}}
    (report,), _, faults = host_reports.judge([host(versions=without, last_errors=errors, nodes=nodes)])
    found = {one.what for one in report.findings if one.must_fix}
    assert "decorator: not installed in this Python" in found
    assert "/dev/davinci0: crw-rw---- root HwHiAiUser, this user may not open it" in found
    assert any("HCCP" in one.what for one in report.findings)
    assert report.codes[0].startswith("EJ0001: ")
    assert faults == []


def test_hosts_that_differ_are_named(host):
    other = host("b", versions={**VERSIONS, "torch": "2.6.0", "torch_npu": "2.6.0"})
    _, differences, _ = host_reports.judge([host(), other])
    assert differences == ["torch: 2.7.1 on a, 2.6.0 on b", "torch_npu: 2.7.1 on a, 2.6.0 on b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a host report"),
        ('{"format": 9}', "format 9, expected 1"),
        ('{"format": 1}', "has no host"),
        ("{", "is not a host report"),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, text, message):
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["doctor", "--report", str(file)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environ": None, "files": ["/etc/x"], "limits": {"n": "many"}}, "invalid environ, files, limits, expected"),
        ({"cann_homes": 7, "last_errors": {"plog": "text"}}, "invalid cann_homes, last_errors, expected"),
        ({"tools": {"npu-smi": [0]}, "nodes": {"/dev/davinci0": {}}}, "invalid nodes, tools, expected"),
        ({"time_s": True, "host": {}, "shm_bytes": None}, "invalid host, shm_bytes, time_s, expected"),
    ],
)
def test_values_of_another_shape_are_refused(host, capsys, changes, message):
    assert main(["doctor", "--report", str(host(**changes)), str(host("b", versions=[]))]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "b.json: invalid versions, expected" in errors


def test_a_host_without_any_device_is_checked_for_npus(host):
    found = host_reports.judge([host(nodes={}, versions={"numpy": "1.26.4"})])[0][0]
    assert found.device == "npu"
    assert any(one.must_fix for one in found.findings)


def test_a_file_that_names_places_outside_is_refused(host, capsys):
    file = host(files={"/../../etc/x": "text"})
    assert main(["doctor", "--report", str(file)]) == 2
    assert "is not an absolute path" in capsys.readouterr().err


def test_secrets_are_left_out():
    environ = {"HF_TOKEN": "hf_abc", "http_proxy": "http://me:word@proxy:80", "HCCL_IF_IP": "10.0.0.1", "PWD": "/w"}
    assert collect.environment(environ) == {
        "HF_TOKEN": "<hidden>",
        "http_proxy": "http://<hidden>@proxy:80",
        "HCCL_IF_IP": "10.0.0.1",
        "PWD": "/w",
    }
    assert (
        collect.without_secrets("api_key=sk-1234567890abcdefgh password: x1, ok; token='x2' Authorization: Basic x3")
        == "api_key=<hidden> password: <hidden>, ok; token='<hidden>' Authorization: Basic <hidden>"
    )
    assert (
        collect.without_secrets("train.py --hub-token x4 --password 'x5' --use-token --unk-token-id 5 --tokens 8")
        == "train.py --hub-token <hidden> --password '<hidden>' --use-token --unk-token-id 5 --tokens 8"
    )


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: eos_token: 50256 is out of range",
        "next_token = torch.argmax(logits, dim=-1)",
        "token = tokens[place]",
        "bos_token='<s>', pad_token=None, mask_token: [MASK], unk_token = \"<|endoftext|>\"",
        "train.py --pad-token 0 --eos-token </s> --max-tokens 512",
        "json: Unexpected token: } at line 1",
    ],
)
def test_tokens_of_a_language_model_are_no_secrets(text):
    assert collect.without_secrets(text) == text


@pytest.mark.parametrize(
    "secret",
    ["token=abc.def", "token: 12-34ab", "token='x2'", "--hub-token 1234567", "token: 0b1c", "token: bearer x9"],
)
def test_tokens_that_may_be_secrets_are_left_out(secret):
    hidden = collect.without_secrets(secret)
    assert hidden.endswith(("<hidden>", "<hidden>'"))
    assert not any(value in hidden for value in ("abc", "34ab", "x2", "1234567", "1c", "x9"))


def old_python() -> str:
    here = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))
    return str(here[0]) if here else shutil.which("python3.8") or ""


@pytest.mark.skipif(not old_python(), reason="no Python 3.8 on this host")
def test_it_runs_alone_with_python_3_8(tmp_path):
    alone = shutil.copy(collect.__file__, tmp_path / "collect.py")
    subprocess.run([old_python(), "-I", alone, str(tmp_path / "out.json")], check=True, stdout=subprocess.DEVNULL)
    (report,), _, _ = host_reports.judge([tmp_path / "out.json"], "cpu")
    assert report.stack["python"].startswith("3.8.")
    assert (tmp_path / "out.json").stat().st_mode & 0o777 == 0o600
