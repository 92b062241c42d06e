"""What is missing for a job on NVIDIA GPUs, on a stand-in of a host that has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascend_adapt.diagnosis import findings
from ascend_adapt.diagnosis.findings import Ran, cuda

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: 12\n"
MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"
SMI = "| NVIDIA-SMI 550.54.15       Driver Version: 550.54.15       CUDA Version: 12.4     |\n"


@pytest.fixture
def host(machine):
    """Return the stand-in as a machine, with which nothing is wrong."""
    for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", cuda._DRIVER):
        machine.at(path).parent.mkdir(parents=True, exist_ok=True)
        machine.at(path).write_text(OPEN_MODULE)
    return replace(
        machine,
        device="cuda",
        nodes={"npu": (), "cuda": (machine.at("/dev/nvidia0"),)},
        torch_cuda="12.4",
        tools={"nvidia-smi": Ran(0, SMI)},
    )


@pytest.mark.parametrize(("text", "version"), [(OPEN_MODULE, "550.54.15"), (MODULE, "535.54.03")])
def test_nothing_is_wrong(text, version, host):
    host.at(cuda._DRIVER).write_text(text)
    assert findings.examine(host) == ()
    assert cuda.stack(host) == {"NVIDIA driver": version, "CUDA of torch": "12.4"}


@pytest.mark.parametrize(
    ("changed", "what", "must_fix"),
    [
        ({"torch_cuda": ""}, "torch 2.7.1+cpu is built without CUDA", True),
        ({"torch_cuda": "13.0"}, "torch is built with CUDA 13.0, but the driver supports at most CUDA 12.4", True),
        ({"nodes": {"npu": (), "cuda": ()}}, "/dev/nvidia0: not found", True),
        ({"tools": {"nvidia-smi": None}}, "nvidia-smi is not on PATH", False),
        (
            {"tools": {"nvidia-smi": Ran(18, "Failed to initialize NVML: Driver/library version mismatch\n")}},
            "nvidia-smi failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch",
            True,
        ),
        ({"limits": {"l": 64}}, "ulimit -l is 64 KiB", False),
    ],
)
def test_what_is_missing(changed, what, must_fix, host):
    (found,) = findings.examine(replace(host, **changed))
    assert (found.what, found.must_fix) == (what, must_fix)


def test_no_driver(host):
    host.at(cuda._DRIVER).unlink()
    (found,) = findings.examine(host)
    assert (found.what, found.must_fix) == (f"no NVIDIA driver is loaded: {cuda._DRIVER} does not exist", True)
    # On WSL the GPU is that of Windows.
    host.at("/dev/dxg").touch()
    assert findings.examine(host) == ()
