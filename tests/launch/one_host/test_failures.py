"""The order of the failures that ranks record."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import pytest
from torch.multiprocessing import spawn
from torch.utils.data import DataLoader

from ascend_adapt.launch.one_host import failures
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.moment import Moment
from ascend_adapt.launch.one_host.run_directory import RunDirectory


def test_a_jump_of_the_wall_clock_does_not_change_which_rank_failed_first(tmp_path, monkeypatch):
    run_dir = RunDirectory(tmp_path)
    run_dir.failures.mkdir(parents=True)
    began, now = Moment.now(), time.time_ns
    failures.record({"ASCEND_ADAPT_RUN_DIR": str(tmp_path), "RANK": "3"}, 7, "the cause")
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)  # the jump; the test may not set the real clock
    failures.record({"ASCEND_ADAPT_RUN_DIR": str(tmp_path), "RANK": "0"}, 1, "connection lost")
    assert failures.first_recorded(run_dir, began, None).rank == 3
    assert failures.first_recorded(run_dir, began, [0]).rank == 0  # recorded since, although the wall clock denies it
    seen = failures.earliest(run_dir, Failure(0, Moment.now(), 1), began)
    assert (seen.rank, seen.code, seen.error) == (3, 7, "the cause")
    assert failures.first_recorded(run_dir, Moment.now(), None) is None


def test_hosts_that_only_share_a_run_directory_are_ordered_by_the_wall_clock():
    here = Moment.now()
    there = Moment("another boot", 1, here.wall_ns + 1)
    assert here.is_before(there)
    assert not there.is_before(here)


class Samples(list):
    def __getitem__(self, index):
        raise KeyError("no\nsample")


def fail(rank):
    try:
        raise KeyError("the first")
    except KeyError:
        raise ValueError("the loss is\nNaN") from None


def load():
    return list(DataLoader(Samples("ab"), num_workers=1))


@pytest.mark.parametrize(
    ("run", "error", "function"),
    [
        (lambda: spawn(fail, nprocs=1), "ValueError: the loss is NaN", fail),
        (load, r"KeyError: 'no\nsample'", Samples.__getitem__),
        (lambda: fail(0), "ValueError: the loss is NaN", None),
    ],
    ids=["spawn", "DataLoader", "this process"],
)
def test_the_exception_of_another_process_is_named_with_its_place(run, error, function):
    with pytest.raises(Exception) as caught:
        run()
    lines = function.__code__.co_lines() if function is not None else ()
    places = {f" at {__file__}:{line}" for _, _, line in lines} or {""}
    assert failures.described(caught.value) in {error + place for place in places}


def options_without_a_value():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16")
    parser.parse_args(["--bf16"])


def print_and_exit():
    try:
        raise OSError("no data")
    except OSError as error:
        print(error)
        sys.exit(3)


def exit_quietly():
    try:
        raise OSError("no data")
    except OSError:
        raise SystemExit(3) from None


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (options_without_a_value, "sys.exit(2) while handling ArgumentError: argument --bf16: expected one argument"),
        (print_and_exit, "sys.exit(3) while handling OSError: no data"),
        (exit_quietly, "sys.exit(3)"),
        (lambda: sys.exit(7), "sys.exit(7)"),
    ],
)
def test_an_exit_names_the_exception_that_led_to_it(run, expected):
    with pytest.raises(SystemExit) as raised:
        run()
    assert failures.exit_described(raised.value) == expected


def test_failures_of_ranks_and_of_processes_without_a_rank_are_separate(tmp_path):
    run_dir = RunDirectory(tmp_path)
    run_dir.create()
    began, environ = Moment.now(), {"ASCEND_ADAPT_RUN_DIR": str(tmp_path)}
    failures.record_uncaught(environ, ValueError("bad"), None)
    failures.record_uncaught(environ, subprocess.CalledProcessError(1, "train.py"), None)
    assert failures.first_recorded(run_dir, began, None) is None
    assert failures.last_of_a_process(run_dir, began).error == "ValueError: bad"
    run_dir.create()  # A run directory that is used again has no failures.
    assert failures.last_of_a_process(run_dir, began) is None
