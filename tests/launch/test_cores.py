from __future__ import annotations

import os

import pytest

from ascend_adapt.launch import cores


@pytest.mark.parametrize(("nproc", "threads"), [(1, 4), (2, 2), (3, 1), (16, 1)])
def test_ranks_share_the_physical_cores(monkeypatch, nproc, threads):
    """A mock of a processor with two hardware threads a core, of which this process may use four cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "_siblings", lambda cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    assert cores.threads_per_rank(nproc) == threads


def test_one_rank_gets_what_this_process_may_use():
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everything)})
    try:
        assert cores.threads_per_rank(1) == 1
    finally:
        os.sched_setaffinity(0, everything)
