from __future__ import annotations

import sys

import pytest

from ascend_adapt.launch.placement import environment
from ascend_adapt.launch.request import parse


def test_patch_options_become_variables():
    request = parse(["--disable", "a", "--strict", "--allow-drift", "b", "train.py"])
    env = environment.of_patches(request, "cuda", {"megatron", "deepspeed"}, {"ASCEND_ADAPT_DISABLE": "z"})
    del env["PYTHONPATH"]
    assert env == {
        "ASCEND_ADAPT_TARGETS": "deepspeed,megatron",
        "ASCEND_ADAPT_DEVICE": "cuda",
        "ASCEND_ADAPT_DISABLE": "z,a",
        "ASCEND_ADAPT_ALLOW_DRIFT": "b",
        "ASCEND_ADAPT_STRICT": "1",
    }


def test_options_of_numbers_become_variables():
    request = parse(["--numerics", "exact", "--deterministic", "train.py"])
    env = environment.of_patches(request, "cuda", (), {"ASCEND_ADAPT_NUMERICS": "upstream"})
    assert env["ASCEND_ADAPT_NUMERICS"] == "exact"
    assert env["ASCEND_ADAPT_DETERMINISTIC"] == "1"
    assert env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert environment.of_patches(request, "cuda", (), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})[
        "CUBLAS_WORKSPACE_CONFIG"
    ] == (":16:8")
    plain = environment.of_patches(parse(["train.py"]), "cuda", (), {})
    assert not {"ASCEND_ADAPT_NUMERICS", "ASCEND_ADAPT_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG"} & set(plain)


@pytest.mark.parametrize("users", ["", "/x", ":/x", "/x::/y:", f"{environment.BOOTSTRAP}:/x", "/a b:/ü"])
def test_the_bootstrap_is_first_and_no_element_is_empty(users):
    elements = environment.python_path(users).split(":")
    assert elements[0] == environment.BOOTSTRAP
    assert elements[1:] == [element for element in users.split(":") if element not in ("", environment.BOOTSTRAP)]


def test_npu_defaults_give_way_to_the_user():
    reported = environment.of_device(
        "npu", "/run", 61016, {"CUDA_VISIBLE_DEVICES": "2,3", "HCCL_CONNECT_TIMEOUT": "60"}
    )
    assert reported == {
        "HCCL_WHITELIST_DISABLE": "1",
        "HCCL_IF_BASE_PORT": "61016",
        "ASCEND_PROCESS_LOG_PATH": "/run/npu-logs",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "ASCEND_RT_VISIBLE_DEVICES": "2,3",
    }
    everything = dict.fromkeys(reported, "mine") | {"HCCL_CONNECT_TIMEOUT": "mine"}
    assert environment.of_device("npu", "/run", 61016, everything) == {}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_other_devices_get_none(device):
    assert environment.of_device(device, "/run", 61016, {}) == {}


def test_a_job_for_the_cpu_sees_no_gpu(monkeypatch):
    """On two GPUs accelerate put ranks of a `--device cpu` job on them."""
    assert environment.of_device("cpu", "/run", 61016, {"CUDA_VISIBLE_DEVICES": "0,1"}) == {"CUDA_VISIBLE_DEVICES": ""}
    assert environment.of_device("cuda", "/run", 61016, {"CUDA_VISIBLE_DEVICES": "0,1"}) == {}
    monkeypatch.setattr(environment.probe, "device_nodes", lambda kind, dev: ["nvidia0"] if kind == "cuda" else [])
    assert environment.of_device("cpu", "/run", 61016, {}) == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, {}),
        ({"ASCEND_HOME_PATH": "/usr/local/Ascend"}, {}),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torch_does_not_load_a_torch_npu_that_has_no_cann(device, environ, expected, tmp_path, monkeypatch):
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    assert environment.of_device(device, "/run", 61016, environ) == expected
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in environment.of_device("npu", "/run", 61016, environ)
