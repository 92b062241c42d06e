from __future__ import annotations

from pathlib import Path

import pytest

from ascend_adapt.diagnosis.findings import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with which nothing is wrong, for a job on its CPU; its file system is a folder."""
    for name in ("extensions", "work", "root"):
        (tmp_path / name).mkdir()
    return Machine(
        device="cpu",
        versions={"torch": "2.7.1+cpu", "deepspeed": "0.16.9", "numpy": "1.26"},
        nodes={"npu": (), "cuda": ()},
        environ={},
        folder=tmp_path / "work",
        extensions=tmp_path / "extensions",
        now_s=10_000.0,
        shm_bytes=1 << 34,
        root=tmp_path / "root",
        limits={"n": None, "u": None, "l": None},
    )
