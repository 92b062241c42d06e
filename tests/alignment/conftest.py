"""Recordings that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from alignment.small_training import Run

from ascend_adapt.alignment import comparison, recording


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """clean(recompute): the recording of the run without a fault."""
    made: dict[bool, Path] = {}

    def of(recompute: bool = False) -> Path:
        if recompute not in made:
            made[recompute] = Run(recompute=recompute).record(tmp_path_factory.mktemp("clean"))
        return made[recompute]

    return of


@pytest.fixture(scope="session")
def compared():
    """compared(A, B): the report of two recordings."""
    return lambda a, b: comparison.compare(recording.read(a), recording.read(b))
