"""``bench.gpus``: where the time of a GPU goes, its rows, and their GPUs."""

from __future__ import annotations

from bench.gpu.repeats import equal
from bench.gpus import __main__ as table
from bench.gpus import job
from bench.gpus.rows import ROWS
from bench.gpus.trace import summary


def kernel(name, start, end, launch, *, kind="kernel"):
    """Return the events of a kernel and of its launch, which took 1 us and ended at ``launch``."""
    place = {"ph": "X", "args": {"correlation": start}}
    return [
        {**place, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch - 1, "dur": 1},
        {**place, "cat": kind, "name": name, "ts": start, "dur": end - start},
    ]


def test_communication_is_exposed_where_nothing_else_runs_and_idle_is_the_hosts_until_the_launch():
    events = [
        *kernel("gemm", 1000, 2000, launch=900),
        *kernel("ncclDevKernel_AllGather(args)", 1500, 2600, launch=950),  # 600 of 1100 exposed
        *kernel("gemm", 2500, 3000, launch=1000),
        *kernel("Memcpy PtoP", 2800, 3100, launch=1100, kind="gpu_memcpy"),  # 100 of 300 exposed
        *kernel("gemm", 4100, 5000, launch=3900),  # 1000 idle, of which 800 until it was launched
        {"ph": "M", "name": "process_name"},
    ]
    assert summary(events, 2) == {
        "span": 2.0,
        "busy": 1.5,
        "communication": 0.7,
        "exposed": 0.3,
        "idle": 0.5,
        "idle_host": 0.4,
        "kernels": 2.5,
        "collectives": {"ncclDevKernel_AllGather": 0.55, "Memcpy PtoP": 0.15},
    }
    assert summary([{"ph": "M", "name": "process_name"}], 2) == {}


def test_rows_are_arguments_and_those_of_one_rank_take_turns_on_the_gpus():
    for row in ROWS.values():
        assert job.parser().parse_args(row.words).ranks == row.ranks
    assert list(table.placed(["one", "one-minimal", "tensor", "one-8"], 2)) == [
        ("one", [0]),
        ("one-minimal", [1]),
        ("tensor", [0, 1]),
        ("one-8", [0]),
    ]


def test_losses_are_compared_with_one_process_on_the_same_samples():
    one = {"side": "native", "shape": "1.3B", "micro_batch": 4, "tensor": 1, "pipeline": 1}
    results = {
        "one": {**one, "ranks": 1, "accumulation": 1, "losses": [8.0, 4.0]},
        "tensor": {**one, "ranks": 2, "tensor": 2, "accumulation": 1, "losses": [8.0, 4.004]},
        "zero1": {**one, "ranks": 2, "accumulation": 1, "losses": [9.0]},  # twice the samples, which no row has
        "peer": {**one, "side": "fsdp2", "ranks": 2, "accumulation": 1, "losses": [9.0]},
    }
    assert table.losses(results) == ["tensor: 2 losses at most 1.0e-03 from one process, at step 2"]
    # Where it is there, one process on the same micro batches is the reference.
    halves = {"micro_batch": 2, "accumulation": 2}
    results |= {
        "one-2": {**one, "ranks": 1, **halves, "losses": [8.0, 5.0]},
        "pipeline": {**one, "ranks": 2, "pipeline": 2, **halves, "losses": [8.08, 5.0]},
    }
    assert table.losses(results)[-1] == "pipeline: 2 losses at most 1.0e-02 from one process, at step 1"


def test_runs_that_must_repeat_are_compared_in_every_bit():
    rows = [(8.0, 1.0), (4.0, 2.0), (2.0, 3.0)]
    same, other = equal("resumed", rows, rows), equal("eager", rows, [rows[0], (4.0, 2.5), (2.5, 3.0)])
    assert (same.ratio, same.details) == (0, "0 of 3")
    assert (other.ratio, other.details) == (2, "2 of 3; first 2: (4.0, 2.0) and (4.0, 2.5); losses at most 2.0e-01")
    assert table.repeats({"a": {"repeats": [{"what": "eager", "details": other.details}]}, "b": {}}) == [
        f"a: eager: {other.details}"
    ]
