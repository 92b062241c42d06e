"""The examples that test_tiny.py leaves out: `make examples`."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.examples import REST, check


@pytest.mark.parametrize("path", REST)
def test_it_trains(path: str, tmp_path: Path) -> None:
    check(path, *REST[path], tmp_path)
