"""``bench.session``: the tables share a time limit, and one that fails does not stop the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import session


@pytest.mark.parametrize(("ended", "expected"), [(1, 1), (-9, 9)], ids=["exit code", "signal"])
def test_tables_get_the_time_that_is_left(ended, expected):
    now, calls = [100.0], []

    def call(words):
        calls.append(words[1:])
        now[0] += 400.0
        return ended if "bench.gpus" in words else 0

    code = session.run(570.0, Path("into"), True, call, lambda: now[0])
    assert code == expected
    assert [(words[1], words[3], words[5], words[-1]) for words in calls] == [
        ("bench.gpus", "9.50", "into/bench.gpus", "--tiny"),
        ("bench.gpu", "2.83", "into/bench.gpu", "--tiny"),
    ]


def test_no_table_starts_that_has_no_time(capsys):
    now = [0.0]

    def call(words):
        now[0] += 560.0
        return 0

    assert session.run(570.0, Path("into"), False, call, lambda: now[0]) == 0
    assert "bench.gpu: not started, 10 s are left" in capsys.readouterr().err
