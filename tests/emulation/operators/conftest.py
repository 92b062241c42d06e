from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ascend_adapt.emulation import environment

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def results_of(tmp_path_factory):
    """Return the results of a table's cases; each table runs once, in one process on the emulated device."""

    @cache
    def results(table):
        to = tmp_path_factory.mktemp("operators") / f"{table}.json"
        command = [sys.executable, "-m", "emulation.operators.run_cases", table, str(to)]
        ended = subprocess.run(command, env=emulated(), capture_output=True, text=True, timeout=280)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return json.loads(to.read_text())

    return results


def emulated():
    """Return the environment of a process on the emulated device."""
    emulation = environment.prepare("910B", 2, os.environ)
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        **emulation.variables(os.environ),
        "PYTHONPATH": emulation.python_path(path),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
    }
