"""Rehearsals at full size: models that do not fit this machine, their memory, collectives and operations."""

from __future__ import annotations

import pytest

from ascend_adapt.emulation.full_size import summary

GIB = 1 << 30
WIDTH, LAYERS, ROWS = 16384, 3, 8  # those of jobs/full_size.py
MATRIX = WIDTH * WIDTH * 4
WEIGHTS = LAYERS * (MATRIX + WIDTH * 4) + 100 * WIDTH * 4
# torch_npu rounds each tensor up to 512 bytes, after 32 bytes of padding.
ROUNDING = 1024 * 16


@pytest.fixture(scope="module")
def full_size(jobs):
    return jobs("full_size.py", nproc=2, options=["--full-size"]).check()


def of_rank(job, rank):
    return job.rehearsal["ranks"][str(rank)]["full_size"]


def test_a_model_larger_than_this_machine_trains_without_its_memory(full_size):
    for rank, recorded in full_size.recorded.items():
        (loss, largest_token, peak), *_ = recorded
        assert loss == 1.0  # a stand-in, which is finite
        assert largest_token == ROWS - 1 + 1  # the maximum over both ranks was computed
        assert peak < 2 * GIB, rank


def test_memory_is_that_of_torch_npus_allocator_by_purpose(full_size):
    memory = of_rank(full_size, 1)["memory"]["1"]
    purposes = memory["by_purpose"]
    assert purposes["weights"] == pytest.approx(WEIGHTS, abs=ROUNDING)
    assert purposes["gradients"] == pytest.approx(WEIGHTS, abs=ROUNDING)
    assert purposes["optimizer states"] == pytest.approx(2 * WEIGHTS, abs=ROUNDING)
    assert purposes["communication buffers"] == 2 * 200 << 20
    assert memory["allocated_peak"] >= 4 * WEIGHTS
    assert memory["reserved_peak"] >= memory["allocated_peak"]


def test_the_job_ends_after_two_steps(full_size):
    assert "full size: ended after 2 optimizer steps" in (full_size.run_dir / "rank-0.log").read_text()


def test_collectives_are_counted_by_dtype_and_group(full_size):
    traffic = {(one["name"], one["type"], one["ranks"]): one for one in of_rank(full_size, 0)["collectives"]}
    gradients = traffic["all_reduce", "float32", "0,1"]
    assert gradients["calls"] == 2 * LAYERS + 1  # in one step
    assert gradients["bytes"] == WEIGHTS


def test_operations_are_those_of_the_matrix_products(full_size):
    # Forward one product a layer, backward two.
    assert of_rank(full_size, 0)["flops"] == 3 * LAYERS * 2 * ROWS * WIDTH * WIDTH


def test_the_first_allocation_that_does_not_fit_has_its_line(job):
    failed = job("beyond_the_device.py", options=["--full-size"])
    assert failed.code != 0
    refused = of_rank(failed, 0)["memory"]["0"]["refused"]
    assert refused["line"].endswith("beyond_the_device.py:5")
    assert "OUT OF MEMORY at " in failed.stdout + failed.stderr


def test_full_size_needs_the_emulated_device(launch):
    ended = launch("--device", "cpu", "--full-size", "train.py")
    assert ended.returncode == 2
    assert "--full-size: --device is cpu, expected npu-emulated" in ended.stderr


def device(allocated, **by_purpose):
    sizes = {"allocated_peak": allocated, "reserved_peak": allocated}
    return sizes | {"by_purpose": by_purpose, "by_line": {}, "first_beyond": {}, "refused": None, "beyond_int32": {}}


@pytest.mark.parametrize(
    ("allocated", "verdict"),
    [(31 * GIB, "fits 32 GiB"), (33 * GIB, "fits 64 GiB"), (65 * GIB, "does not fit 64 GiB")],
)
def test_the_verdict_of_a_rank(allocated, verdict):
    facts = {"memory": {"0": device(allocated)}, "flops": 0, "collectives": [], "host_skipped": {}, "of_one_step": True}
    lines = summary.lines({0: {"full_size": facts, "steps": 1}})
    assert any(line.startswith("rank 0: peak") and line.endswith(verdict) for line in lines)
