"""The support matrix and the evidence page are what the records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def support():
    spec = importlib.util.spec_from_file_location("support_matrix", ROOT / "documentation" / "support.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_up_to_date(support):
    for path, renewed in support.pages().items():
        assert path.read_text(encoding="utf-8") == renewed, f"{path}: run `make docs-support`"


def test_every_run_has_a_page_and_a_known_tier(support):
    for run in support.runs():
        assert (ROOT / "docs" / run["page"].partition("#")[0]).exists(), run["page"]
        assert set(run["tiers"]) <= set(support.TIERS), run
