from __future__ import annotations

import pytest

from ascend_adapt import probe


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A /dev of our choice, and what is installed."""

    def make(*nodes, **versions):
        for node in nodes:
            (tmp_path / node).write_text("")
        monkeypatch.setattr(probe, "distribution_version", versions.get)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("nodes", "versions", "environ", "device", "reason"),
    [
        ([], {"torch": "2.13.0"}, {}, "cpu", "no NPU or GPU device nodes"),
        (
            ["davinci0", "davinci_manager"],
            {"torch_npu": "2.13.0"},
            {},
            "npu",
            "1 NPU device nodes",
        ),
        (["davinci0"], {}, {}, "cpu", "NPU device nodes, but torch_npu is not installed"),
        (["davinci0"], {"torch_npu": "2.1"}, {"ASCEND_RT_VISIBLE_DEVICES": ""}, "cpu", "ASCEND_RT_VISIBLE_DEVICES is"),
        (["nvidia0", "nvidia1", "nvidiactl"], {"torch": "2.13.0"}, {}, "cuda", "2 NVIDIA device nodes"),
        (["dxg"], {"torch": "2.13.0+cu130"}, {}, "cuda", "1 NVIDIA device nodes"),
        (["nvidia0"], {"torch": "2.13.0+cpu"}, {}, "cpu", "torch 2.13.0+cpu is a CPU build"),
        (
            ["nvidia0"],
            {"torch": "2.13.0"},
            {"CUDA_VISIBLE_DEVICES": "-1"},
            "cpu",
            "CUDA_VISIBLE_DEVICES hides",
        ),
    ],
)
def test_the_device_and_the_reason(machine, nodes, versions, environ, device, reason):
    found, why = probe.detect_device(environ, machine(*nodes, **versions))
    assert found == device
    assert reason in why


@pytest.mark.parametrize(
    ("kind", "environ", "count"),
    [
        ("cpu", {}, 1),
        ("npu", {}, 12),
        ("npu", {"ASCEND_RT_VISIBLE_DEVICES": "3,5"}, 2),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, 0),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
    ],
)
def test_visible_devices_narrow_the_count(machine, kind, environ, count):
    dev = machine(*(f"davinci{number}" for number in range(12)))
    assert probe.count_devices(kind, environ, dev) == count


def test_device_nodes_are_in_order_of_their_number(machine):
    assert probe.device_nodes("npu", machine("davinci10", "davinci2", "davinci_manager")) == ["davinci2", "davinci10"]


def test_a_checkout_is_not_owned_by_the_distribution_of_the_same_name(tmp_path, monkeypatch):
    site, checkout = tmp_path / "site", tmp_path / "checkout"
    for folder in (site, checkout):
        (folder / "toy").mkdir(parents=True)
        (folder / "toy" / "__init__.py").write_text("")
    (site / "toy-1.0.dist-info").mkdir()
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    assert probe.owning_version("toy", "toy") == "1.0"
    monkeypatch.syspath_prepend(str(checkout))
    assert probe.root_folder("toy") == checkout
    assert probe.owning_version("toy", "toy") is None
    assert probe.distribution_version("toy") == "1.0"


@pytest.mark.parametrize("asked", [None, "", "auto"])
def test_a_device_that_is_asked_for_is_not_detected(asked):
    assert probe.device_to_use(asked, {}) == probe.detect_device({})
    assert probe.device_to_use("npu", {}) == ("npu", "as requested")
