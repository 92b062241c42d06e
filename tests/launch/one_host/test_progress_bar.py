"""The bar of a native run on a terminal: below the lines, never in them, and nowhere but there."""

from __future__ import annotations

import json
import os

import pytest
from launch.terminals import read_all, screen, terminal

from ascend_adapt.launch.one_host.console import STDERR, STDOUT, Console
from ascend_adapt.launch.one_host.progress_bar import ProgressBar
from ascend_adapt.native.metrics.progress_pipe import VARIABLE, ProgressPipe
from ascend_adapt.native.metrics.step_metrics import StepMetrics

COLUMNS = 100


def reported(iteration, of=40, loss=3.25):
    return (
        json.dumps({"iteration": iteration, "iterations": of, "lm_loss": loss, "samples_per_s": 12.5}) + "\n"
    ).encode()


def test_a_bar_of_every_width():
    bar = ProgressBar()
    assert bar.drawn(80) == b""
    assert bar.erased() == b""
    bar.read(reported(10)[:-5])
    assert bar.drawn(80) == b"", "half a line says nothing"
    bar.read(reported(10)[-5:] + reported(11) + reported(12, loss=float("nan")))
    for width in (20, 40, 80, 200):
        (line,) = (line for line in screen(bar.drawn(width), width) if line)
        assert len(line) < width
    assert "12/40" in line
    assert "loss nan, 12.5 samples/s" in line
    assert bar.drawn(10) == b""


@pytest.fixture
def on_terminal(monkeypatch):
    """on_terminal(show): what a terminal shows after show(console), with a bar that stands at 10 of 40."""

    def run(show):
        ours, theirs = terminal(COLUMNS)
        kept = os.dup(STDOUT), os.dup(STDERR)
        try:
            os.dup2(theirs, STDOUT)
            os.dup2(theirs, STDERR)
            bar = ProgressBar()
            bar.read(reported(10))
            show(Console(whole_lines=False, bar=bar))
        finally:
            for number, before in zip((STDOUT, STDERR), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
        os.close(theirs)
        return screen(read_all(ours), COLUMNS)

    return run


def test_lines_are_above_the_bar_and_whole(on_terminal, capfd):
    def show(console):
        console.draw()
        console.show(0, STDOUT, b"first ")
        console.draw()
        console.show(1, STDERR, b"a warning\n")
        console.show(0, STDOUT, b"line\nsecond line\nno end")
        console.show(0, STDOUT, b"", ended=True)
        console.draw(is_last=True)

    with capfd.disabled():
        *lines, bar, last = on_terminal(show)
    assert lines == ["a warning", "first line", "second line", "no end"]
    assert "10/40" in bar
    assert last == ""


def test_what_others_write_over_the_bar_can_be_read(on_terminal, capfd):
    """The guardian's own words do not go through here."""

    def show(console):
        console.draw()
        os.write(STDERR, b"ascend-run: rank 1 failed\n")

    with capfd.disabled():
        assert on_terminal(show)[0].startswith("ascend-run: rank 1 failed")


def metrics(iteration):
    return StepMetrics(iteration, 8 * iteration, 8, 256, 3.5, 1e-3, 1.0, 1.0, skipped=False, nan=False, seconds=0.5)


def test_a_rank_waits_for_nobody():
    """Neither for a launcher that does not read, nor for one that is gone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    progress = ProgressPipe.of({VARIABLE: str(writer)}, 10**6)
    for iteration in range(1, 3000):  # more than a pipe holds
        progress.step(metrics(iteration))
    first, *_ = os.read(reader, 1 << 20).split(b"\n")
    assert json.loads(first) == {"iteration": 1, "iterations": 10**6, "lm_loss": 3.5, "samples_per_s": 16.0}
    progress.step(metrics(3000))
    os.close(reader)
    progress.step(metrics(3001))
    progress.step(metrics(3002))
    os.close(writer)


def test_a_rank_without_a_bar_prints_nothing():
    ProgressPipe.of({}, 10).step(metrics(1))
