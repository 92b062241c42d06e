"""The kernels through the real torch_npu on an emulated NPU: wiring and gradients, not an NPU's results or speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.emulation import environment
from ascend_adapt.kernels import requests

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Name of a case -> "" or the problem; all run in one process on the emulated device."""
    machine = environment.prepare("910B", 1, os.environ)
    known = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_ADAPT_KERNELS")}
    environ = {
        **known,
        **machine.variables(os.environ),
        "PYTHONPATH": machine.python_path(os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
    }
    to = tmp_path_factory.mktemp("kernels") / "results.json"
    command = [sys.executable, "-m", "kernels.emulated_cases", str(to)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(to.read_text())


@pytest.mark.parametrize("kernel", requests.NAMES)
def test_it_satisfies_the_contract(results, kernel):
    found = {name: wrong for name, wrong in results.items() if name.startswith(f"{kernel},")}
    assert found
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_second_derivatives_are_refused(results):
    assert results["second derivatives"] == ""


def test_no_documented_limit_was_exceeded(results):
    assert results["limits kept"] == ""
