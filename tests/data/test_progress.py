"""Progress output of a run."""

from __future__ import annotations

import io

import pytest

from ascend_adapt.data import progress as progress_module
from ascend_adapt.data.preprocessing import Counts, DocumentProgress
from ascend_adapt.data.progress import progress_display


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def at(megabytes, total=100, resumed=False):
    counts = Counts(documents=megabytes * 10, text_bytes=megabytes * 1_000_000)
    return DocumentProgress(counts, megabytes * 1_000_000, total * 1_000_000, "hf", resumed)


def test_lines_at_intervals(clock):
    stream = io.StringIO()
    with progress_display(stream) as show:
        for megabytes in range(10, 101, 10):
            clock.now += 10
            show(at(megabytes))
    assert stream.getvalue().splitlines() == [
        "300 documents, 30.0 MB, 1.00 MB/s, 70 s left, engine hf",
        "600 documents, 60.0 MB, 1.00 MB/s, 40 s left, engine hf",
        "900 documents, 90.0 MB, 1.00 MB/s, 10 s left, engine hf",
    ]


def test_the_work_of_an_interrupted_run_does_not_count_as_speed(clock):
    stream = io.StringIO()
    with progress_display(stream) as show:
        show(at(50, resumed=True))
        clock.now += 40
        show(at(60, resumed=True))
    assert stream.getvalue().splitlines() == [
        "resuming after document 500",
        "600 documents, 60.0 MB, 0.25 MB/s, 160 s left, engine hf",
    ]


def test_an_input_of_unknown_size(clock):
    stream = io.StringIO()
    with progress_display(stream) as show:
        clock.now += 40
        show(at(20, total=0))
    assert stream.getvalue() == "200 documents, 20.0 MB, 0.50 MB/s, time left unknown, engine hf\n"


def test_a_bar_on_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with progress_display(stream) as show:
        show(at(25))
    assert "25%" in stream.getvalue()
    assert "250 documents" in stream.getvalue()
    assert "MB/s" in stream.getvalue()
