"""The example plugin, installed in its own folder, is found and tested by the complete suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip installs it: the module, and metadata made from the example's own setup.cfg."""
    folder: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    copied = folder / "source"
    copied.mkdir()
    for file in EXAMPLE.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    subprocess.run([*command, folder / "packages", copied], check=True, timeout=280)
    return folder / "packages"


def suite(folder: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "ascend_adapt.testing"]
    command += ["--evidence", str(tmp_path / "evidence.json"), *options]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=280)


def test_the_generated_suite_runs_on_it(installed: Path, tmp_path: Path) -> None:
    job = suite(installed, tmp_path, "--plugin", "quiet_training")
    assert job.returncode == 0, job.stdout + job.stderr
    assert "4 of 4 patches were applied, 0 on a real target, 4 on a stand-in" in job.stdout
    assert "quiet_training.no_nvidia_smi (gpt2_recipes is not installed)" in job.stdout
    assert not (tmp_path / "evidence.json").exists()  # a stand-in is not evidence


def test_status_shows_it(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ascend_adapt.cli", "status", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    status = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    outcomes = [one for one in json.loads(status.stdout)["outcomes"] if one["plugin"] == "quiet_training"]
    assert {one["state"] for one in outcomes} == {"skipped"}
    assert len(outcomes) == 4


def test_it_is_judged_on_a_real_package(installed: Path, tmp_path: Path) -> None:
    """With sources: what fits is seen to fit, what has changed fails by name."""
    package = tmp_path / "upstream" / "gpt2_recipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.5"\n')
    (package / "devices.py").write_text(
        "import subprocess\ndef free_memory():\n    return subprocess.check_output(['nvidia-smi'])\n"
    )
    (package / "losses.py").write_text(
        "class Loss:\n    def reduce(self, losses, mask):\n        return losses.max()\n"
    )
    (package / "precision.py").write_text("DTYPES = {'auto': 'float16'}\n")
    job = suite(
        installed, tmp_path, "--plugin", "quiet_training", "--upstream", str(package.parent), "-k", "source_tree"
    )
    assert job.returncode == 1
    assert "expected 'losses.mean()' exactly once, found it nowhere" in job.stdout
    assert "1 failed, 3 passed" in job.stdout


def test_the_module_is_short() -> None:
    assert len((EXAMPLE / "quiet_training.py").read_text().splitlines()) < 60
