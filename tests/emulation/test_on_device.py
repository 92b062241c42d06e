"""Runs the tests of on_device/ in one process with emulated NPUs; their failures are reported here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_on_device(emulated, tmp_path):
    folder = Path(__file__).parent / "on_device"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=ignore",
        str(folder),
    ]
    process = subprocess.run(
        command,
        cwd=folder.parents[2],
        env=emulated(devices=2, ASCEND_ADAPT_EMULATED_MEMORY=str(64 << 20), ASCEND_ADAPT_EMULATED_CANN="8.3.RC1"),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]
    assert " skipped" not in process.stdout
