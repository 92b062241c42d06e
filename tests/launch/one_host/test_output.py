"""What ranks print reaches a console that is slow, non-blocking, stuck or on a full disk, and logs on one."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import threading
import time

import pytest

from ascend_adapt.launch.one_host import merged_streams
from ascend_adapt.launch.one_host.console import STDERR, STDOUT, Console
from ascend_adapt.launch.one_host.merged_streams import MergedStreams
from ascend_adapt.launch.one_host.output import Output
from ascend_adapt.launch.one_host.rank_log import RankLog

LINES = 60_000


@contextlib.contextmanager
def as_stdout(descriptor):
    """Put a descriptor in the place of standard output's."""
    before = os.dup(STDOUT)
    os.dup2(descriptor, STDOUT)
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(before, STDOUT)
        os.close(before)


def read_all(reader, rest_s=0.0):
    """Read a pipe to its end, resting between reads."""
    seen = b""
    while data := os.read(reader, 1 << 14):
        seen += data
        time.sleep(rest_s)
    os.close(reader)
    return seen


def test_a_slow_reader_of_a_non_blocking_pipe_gets_every_line(tmp_path):
    (tmp_path / "train.py").write_text(f"for n in range({LINES}):\n    print('line', n)\n")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--nproc", "1", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=writer, stderr=subprocess.DEVNULL) as job:
        os.close(writer)
        assert read_all(reader, rest_s=0.01).decode().splitlines() == [f"line {n}" for n in range(LINES)]
    assert job.returncode == 0


@pytest.mark.parametrize("blocks", [True, False])
def test_a_stuck_console_drops_output_and_says_how_much(blocks):
    reader, writer = os.pipe()
    os.set_blocking(writer, blocks)
    line = b"x" * 99 + b"\n"
    with as_stdout(writer):
        console = Console(whole_lines=True, patience_s=0.2)
        began = time.monotonic()
        console.show(0, STDOUT, line * 1000)
        console.show(0, STDOUT, line * 1000)
        assert time.monotonic() - began < 2, "waited once, for 0.2 s"
        first = os.read(reader, 1 << 20)
        console.show(0, STDOUT, b"it reads again\n")
    rest = read_all(reader).decode()
    missing = int(re.search(r"ascend-run: (\d+) bytes are missing here", rest)[1])
    assert len(first) + missing == 2000 * len(line)
    assert rest.endswith("\nit reads again\n")


def test_a_signal_ends_the_wait_for_a_stuck_console():
    reader, writer = os.pipe()
    signals, signal_came = os.pipe()
    with as_stdout(writer):
        threading.Timer(0.2, os.write, (signal_came, b"\x0f")).start()
        began = time.monotonic()
        Console(whole_lines=True, patience_s=30, signals=signals).show(0, STDOUT, b"x" * 200_000 + b"\n")
        assert time.monotonic() - began < 5
    for descriptor in (reader, signals, signal_came):
        os.close(descriptor)


def test_a_stuck_console_at_the_end_of_a_job_keeps_nothing_from_the_logs(tmp_path, capfd):
    reader, writer = os.pipe()
    with as_stdout(writer):
        output = Output({0: tmp_path / "rank-0.log"}, append=False)
        rank = os.dup(output.pipe(0, STDOUT))
        output.begin()
        printing = threading.Thread(target=lambda: (os.write(rank, b"y" * 120_000), os.close(rank)))
        printing.start()
        output.finish(0.3)
        printing.join()
        output.finish(5)
    shown = len(read_all(reader))
    assert (tmp_path / "rank-0.log").read_bytes() == b"y" * 120_000
    assert f"standard output misses {120_000 - shown} bytes, see the logs" in capfd.readouterr().err


def test_a_log_on_a_full_disk_is_named_and_the_job_continues(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("import os\nfor n in range(99):\n    print(os.environ['RANK'], n, flush=True)\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank-1.log").symlink_to("/dev/full")
    job = ascend_run("--device", "cpu", "--nproc", "2", "--log-dir", "run", "train.py")
    assert job.returncode == 0
    assert len(job.stdout.splitlines()) == 198
    assert len((tmp_path / "run" / "rank-0.log").read_text().splitlines()) == 99
    first, last = (line for line in job.stderr.splitlines() if "rank-1.log" in line)
    assert "rank-1.log: No space left on device; the job continues, this log is incomplete" in first
    size = sum(len(f"1 {n}\n") for n in range(99))
    assert f"incomplete logs in {tmp_path}/run: rank-1.log ({size} bytes missing): No space left on device" in last


def test_a_log_continues_when_there_is_space_again_and_marks_the_gap(tmp_path):
    log = RankLog(tmp_path / "rank-0.log", append=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (10, hard)
    )  # the kernel writes what fits, then refuses: Python ignores SIGXFSZ
    try:
        assert log.write(b"12345678\n") == ""
        assert log.write(b"abc\n") == "File too large", "reported once"
        assert log.write(b"def\n") == ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write(b"ghi\n")
    log.close()
    gap = "ascend-run: 7 bytes are missing here: File too large"
    assert log.path.read_text() == f"12345678\na\n{gap}\nghi\n"
    assert log.missing == 7


def test_a_console_on_a_full_disk_is_reported_on_the_other_stream(tmp_path):
    (tmp_path / "train.py").write_text("for n in range(99):\n    print(n, flush=True)\n")
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--log-dir", "run", "train.py"]
    with open("/dev/full", "wb") as full:
        job = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert job.returncode == 0
    assert (tmp_path / "run" / "rank-0.log").read_text() == "".join(f"{n}\n" for n in range(99))
    assert job.stderr.count("standard output: No space left on device; the job continues") == 1
    assert "standard output misses 287 bytes" in job.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_job_starts_and_ends_without_a_console(tmp_path, stream):
    (tmp_path / "train.py").write_text("print('hello', flush=True)\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--log-dir", "run", "train.py"]
    job = subprocess.run(
        command, cwd=tmp_path, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    )
    os.close(writer)
    assert job.returncode == 0
    assert (tmp_path / "run" / "rank-0.log").read_text() == "hello\n"


def test_a_line_in_two_writes_is_not_cut_by_the_other_stream():
    merged = MergedStreams()
    written = [merged.add(STDOUT, b"loss 1"), merged.add(STDERR, b"a warning\n"), merged.add(STDOUT, b"\nloss 2\n")]
    assert written == [b"loss 1", b"", b"\nloss 2\na warning\n"]
    assert not merged.is_waiting


def test_a_line_without_an_end_delays_the_other_stream_for_a_moment(monkeypatch):
    merged = MergedStreams()
    merged.add(STDERR, b"\r 10%|#    |")  # a progress bar, whose line ends with the training
    assert merged.add(STDOUT, b"loss 1\n") == merged.overdue() == b""
    monkeypatch.setattr(merged_streams, "PATIENCE_S", 0.0)
    assert merged.overdue() == b"loss 1\n"
    merged.add(STDERR, b"\r 20%|##   |")
    merged.add(STDOUT, b"loss 2")
    assert merged.add(STDERR, b"") == b"loss 2", "the end of the stream ends its line"


def test_an_unfinished_line_of_an_ended_stream_delays_nothing():
    merged = MergedStreams()
    writes = [(STDOUT, b"x"), (STDERR, b"cut"), (STDERR, b""), (STDOUT, b"y\n"), (STDOUT, b"last\n"), (STDOUT, b"")]
    assert b"".join(merged.add(*write) for write in writes) == b"xy\ncutlast\n"


def test_unbuffered_prints_stay_lines_in_a_log(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(merged_streams, "PATIENCE_S", 60.0)  # whatever else this machine does
    log = tmp_path / "rank-0.log"
    output = Output({0: log}, append=False)
    streams = {number: os.dup(output.pipe(0, number)) for number in (STDOUT, STDERR)}
    output.begin()
    for number, text in ((STDOUT, b"loss 1"), (STDERR, b"a warning\n"), (STDOUT, b"\n")):
        os.write(streams[number], text)
        shown = ""
        while not shown:
            time.sleep(0.01)
            shown = "".join(capfd.readouterr())
    for descriptor in streams.values():
        os.close(descriptor)
    output.finish(10.0)
    assert log.read_text() == "loss 1\na warning\n"
