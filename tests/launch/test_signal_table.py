"""docs/reliability.md: what programs write stays between marks, and what people write around it stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from launch import signal_table
from upstream_runs import marked_page

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_a_renewed_table_keeps_the_text_around_it(tmp_path):
    page = tmp_path / "reliability.md"
    shutil.copy(PAGE, page)
    row = {"kind": "native", "signal": "SIGTERM", "receiver": "launcher", "cell": "renewed", "faults": ""}
    signal_table.write(page, {("native", "SIGTERM", "launcher"): row})
    assert "| native | launcher | renewed | not tried |" in page.read_text()
    around = [
        (before, after.partition(marked_page.END)[2])
        for before, _, after in (
            one.read_text().partition(marked_page.mark_of(signal_table.MAKER)) for one in (PAGE, page)
        )
    ]
    assert around[0] == around[1]
    assert around[0][1].strip().startswith("Two ranks")


@pytest.mark.parametrize("maker", ["make torture", "make torture-checkpoint", signal_table.MAKER])
def test_every_program_has_its_marks(maker):
    before, mark, after = PAGE.read_text().partition(marked_page.mark_of(maker))
    assert mark
    assert "|---|" in after.partition(marked_page.END)[0]
