"""The emulated machine, and jobs that run on it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.emulation import environment
from ascend_adapt.launch.placement import environment as launch_environment

JOBS = Path(__file__).parent / "jobs"
# Variables that torch, torch_npu and DeepSpeed read.
LEFT_OUT = re.compile(r"ASCEND_|HCCL_|TORCH_TRANSFER|PYTORCH_|RANK$|LOCAL_|WORLD_SIZE$|MASTER_")

# These need an emulated NPU; test_on_device.py starts them on one.
collect_ignore = [] if os.environ.get("ASCEND_ADAPT_EMULATED") else ["on_device"]
if os.environ.get("ASCEND_ADAPT_EMULATED_SOC") != "Ascend910A" and "INF_NAN_MODE_FORCE_DISABLE" not in os.environ:
    collect_ignore.append("on_device/test_saturation.py")


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment without variables about devices and ranks."""
    cache = {name: value for name, value in os.environ.items() if name == "ASCEND_ADAPT_CACHE"}
    kept = {name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)}
    return {**kept, **cache, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="session")
def emulated():
    """emulated(devices, **variables): the environment of a process on an emulated machine."""

    def variables(devices: int = 1, soc: str = "910B", **more: str) -> dict[str, str]:
        environ = plain_environment(**more)
        machine = environment.prepare(soc, devices, environ)
        return {**environ, **launch_environment.of_emulation(machine, environ)}

    return variables


class Job:
    """A job that has ended: the values that its ranks recorded, and the launcher's output."""

    def __init__(self, process: subprocess.CompletedProcess[str], run_dir: Path) -> None:
        self.code, self.stdout, self.stderr, self.run_dir = process.returncode, process.stdout, process.stderr, run_dir

    @property
    def recorded(self) -> dict[int, list]:
        """Rank -> the values that it recorded, in order."""
        found: dict[int, list] = {}
        for path in sorted(self.run_dir.glob("rank-*.log")):
            lines = [line for line in path.read_text().splitlines() if line.startswith('{"recorded":')]
            found[int(path.stem[5:])] = [json.loads(line)["recorded"] for line in lines]
        return found

    @property
    def rehearsal(self) -> dict:
        return json.loads((self.run_dir / "rehearsal.json").read_text())

    def check(self) -> Job:
        assert self.code == 0, f"{self.stdout[-3000:]}\n{self.stderr[-6000:]}"
        return self


def _launch(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", *arguments]
    env = plain_environment(**more)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)


def _job_in(folder: Path):
    def run(script: str, *arguments: str, nproc: int = 1, device: str = "npu-emulated", options=(), **more: str) -> Job:
        run_dir = folder / f"run-{len(list(folder.iterdir()))}"
        ours = ["--device", device, "--nproc", str(nproc), "--log-dir", str(run_dir), *options]
        return Job(_launch(folder, *ours, str(JOBS / script), *arguments, **more), run_dir)

    return run


@pytest.fixture
def launch(tmp_path):
    """launch(*arguments, **variables): run ascend-run in tmp_path until it ends."""
    return functools.partial(_launch, tmp_path)


@pytest.fixture
def job(tmp_path):
    """job("name.py", *arguments, nproc=, device=, options=, **variables): run a script of jobs/ until it ends."""
    return _job_in(tmp_path)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Like ``job``, for jobs that the tests of a module share."""
    return _job_in(tmp_path_factory.mktemp("jobs"))
