"""The questions of emulation/jobs/capabilities.py, and the file that it reads."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import torch

SCRIPT = Path(__file__).parent / "emulation" / "jobs" / "capabilities.py"
QUESTIONS = re.findall(r"(?m)^@question\ndef (\w+)", SCRIPT.read_text())


def save_as_on_cuda_3(path: Path) -> Path:
    """Write what torch.save writes for a tensor on cuda:3: the name of the device is a text in its pickle."""
    saved = io.BytesIO()
    torch.save({"weight": torch.tensor([1.0, 2.0])}, saved)
    with zipfile.ZipFile(saved) as host, zipfile.ZipFile(path, "w") as gpu:
        for entry in host.infolist():
            data = host.read(entry)
            gpu.writestr(entry.filename, data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:3"))
    return path


def outcomes_in(output: str) -> dict[str, str]:
    """Return question -> traceback, or "" for a right answer."""
    (line,) = re.findall(r'\{"recorded": .*', output)
    return json.loads(line)["recorded"]
