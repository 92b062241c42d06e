"""Warnings of several ranks on one console."""

from __future__ import annotations

from ascend_adapt.launch.one_host.repeated_warnings import RepeatedWarnings

OF_TORCH = b"[rank%d]:[W1129 14:45:2%d.78 NPUStream.cpp:767] Warning: the padding is 32. (function operator())\n"
OF_PYTHON = b"/torch/c10d_logger.py:83: FutureWarning: it is deprecated.\n  return func(*args, **kwargs)\n"


def test_a_warning_of_each_rank_is_shown_once():
    repeated = RepeatedWarnings()
    shown = [repeated.removed_from(rank, OF_TORCH % (rank, rank) + OF_PYTHON + b"loss 3.1\n") for rank in range(3)]
    assert shown == [OF_TORCH % (0, 0) + OF_PYTHON + b"loss 3.1\n", b"loss 3.1\n", b"loss 3.1\n"]
    assert repeated.count == 4


def test_a_line_of_source_that_comes_later_belongs_to_its_warning():
    repeated = RepeatedWarnings()
    warning, source = OF_PYTHON.splitlines(keepends=True)
    for rank, expected in ((0, OF_PYTHON), (1, b"")):
        assert repeated.removed_from(rank, warning) + repeated.removed_from(rank, source) == expected


def test_what_a_script_prints_is_kept():
    repeated = RepeatedWarnings()
    lines = b"Warning: 3 samples are empty\nWARNING:root:again\nValueError: W\n  indented\n"
    assert [repeated.removed_from(0, lines) for _ in range(2)] == [lines, lines]
