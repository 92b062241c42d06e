"""The Triton kernels in Triton's interpreter, in a separate process with the packages of ``.triton``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".triton"
CASES = tuple(f"tests/kernels/triton_{kind}cases.py" for kind in ("", "oracle_", "fused_"))


@pytest.mark.timeout(900)  # with every case 37 s alone; seen to take 300 s beside other work
def test_the_kernels_agree_with_their_references():
    assert (PACKAGES / "triton").is_dir(), f"{PACKAGES}: has no Triton — run make {PACKAGES.name}/.installed"
    path = os.pathsep.join([str(PACKAGES), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    # Triton 3.6 makes scalars of arrays with one element, which numpy 2.3 warns of.
    warning = "ignore:Conversion of an array:DeprecationWarning"
    command = [sys.executable, "-m", "pytest", "-q", "-W", warning, *CASES]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=880)
    assert ended.returncode == 0, ended.stdout[-3000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 130
