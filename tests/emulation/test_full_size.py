"""Rehearsals at full size: models that do not fit this machine, their memory, collectives and operations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from ascend_adapt.data.token_index import write_index
from ascend_adapt.emulation import finding
from ascend_adapt.emulation.full_size import flops, summary

JOBS = Path(__file__).parent / "jobs"

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
    assert WEIGHTS - ROUNDING < purposes["optimizer workspace"] < WEIGHTS + 3 * MATRIX
    assert purposes.get("activations", 0) < MATRIX
    assert memory["allocated_peak"] >= 4 * WEIGHTS
    assert memory["reserved_peak"] >= memory["allocated_peak"]


def test_the_job_ends_after_two_steps(full_size):
    assert "full size: ended after 2 optimizer steps" in (full_size.run_dir / "rank-0.log").read_text()


LEAVES = """
import multiprocessing, signal, sys, time
from ascend_adapt.emulation.full_size import ending
multiprocessing.Process(target=time.sleep, args=(60,), daemon=True).start()
def of_torch(*_):
    raise RuntimeError("DataLoader worker is killed by signal")
signal.signal(signal.SIGCHLD, of_torch)
sys.stderr.flush = lambda: time.sleep(0.5)  # until the worker is dead
ending._leave(2, lambda: None, lambda: None)
"""


def test_killed_data_workers_are_no_error_at_the_end():
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "full size: ended after 2 optimizer steps (--full-size-steps)\n")


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


@pytest.fixture(scope="module")
def planted(jobs):
    return jobs("full_size_planted.py", options=["--full-size"]).check()


def line_of(comment):
    lines = (JOBS / "full_size_planted.py").read_text().splitlines()
    return f"full_size_planted.py:{next(number for number, line in enumerate(lines, 1) if comment in line)}"


def test_the_first_allocation_beyond_a_device_has_its_line(planted):
    (limit,) = (memory := of_rank(planted, 0)["memory"]["0"])["first_beyond"].items()
    assert limit[0] == str(32 << 30)
    assert limit[1]["line"].endswith(line_of("# beyond 32 GiB"))
    assert limit[1]["bytes"] == 20 << 30
    assert memory["refused"] is None
    assert f"first allocation beyond 32 GiB (rank 0): 20.00 GiB at {JOBS}" in planted.stderr


def test_a_tensor_that_32_bit_indices_cannot_address_has_its_line(planted):
    found = of_rank(planted, 0)["memory"]["0"]["beyond_int32"]
    assert found[str(JOBS / line_of("# 2^31 elements"))] == f"[{1 << 31}]"


def test_a_small_view_of_a_tensor_without_values_is_a_stand_in(planted):
    assert planted.recorded[0][1] == [1.0, [1.0, 1.0, 1.0, 1.0], False]


def test_a_model_that_is_converted_on_the_host_takes_no_memory_of_it(planted):
    assert planted.recorded[0][0] < 1 << 28  # of 4 GiB, converted to 2, and copied


def test_masks_hold_values_and_optimizer_states_take_no_memory_of_this_machine(jobs):
    recorded = dict(jobs("full_size_masks.py", options=["--full-size"]).check().recorded[0])
    assert recorded.pop("bytes of states") < 1 << 26  # of 2 GiB
    assert len(recorded) == 12
    assert {name: found for name, found in recorded.items() if found != name.startswith("causal")} == {}


def test_operations_of_attention_and_the_share_that_is_recomputed(planted):
    scores = 2 * 8 * 4096 * 4096  # batch, heads, rows, columns
    attention = (2 + 5) * 2 * scores * 64  # two products forward, five backward
    product = 2 * 1024 * 8192 * 8192  # forward, again in backward, and the gradient of the weights
    found = of_rank(planted, 0)
    assert (found["flops"], found["recomputed_flops"]) == (attention + 3 * product, product)


def test_operations_of_a_loss_that_contains_the_product_of_its_logits():
    x, weight = torch.empty(6, 8, device="meta"), torch.empty(10, 8, device="meta")
    product = 2 * 6 * 8 * 10
    assert flops.of("npu::npu_fused_linear_online_max_sum", (x, weight, x, 0, 10), None) == product
    name = "npu::npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
    given = (x, x, weight, x, x, 0.0)
    assert flops.of(name, (*given, x, x), None) == 3 * product  # both gradients, and the logits again
    assert flops.of(name, (*given, None, None, x), None) == 2 * product


def test_kernels_are_those_of_the_device_although_nothing_is_computed(planted):
    assert planted.rehearsal["ranks"]["0"]["operators"]["npu::npu_gelu"] == 2  # one a step


def test_a_limit_broken_at_a_large_shape_has_its_line(planted):
    (found,) = [one for one in planted.rehearsal["ranks"]["0"]["findings"] if one["kind"] == finding.LIMIT]
    assert f"full_size_planted.py:{found['line']}" == line_of("# 300 heads")
    assert found["detail"].startswith("head_num is 300")


def test_fsdp2_and_zero_shard_what_they_should(jobs):
    ended = jobs("full_size_sharded.py", "[1, 3]", nproc=2, options=["--full-size", "--full-size-steps", "99"]).check()
    parameters, ranks = 2 * 16384**2, 2
    # Bytes of a parameter: weights and two states in bf16; with ZeRO master weights and states in fp32, and gradients.
    expected = {"FSDP2": 6 / ranks, "ZeRO-1": 2 + 12 / ranks, "ZeRO-3": (2 + 12) / ranks}
    for recorded in ended.recorded.values():
        found = dict(recorded)
        assert found.keys() == expected.keys()
        for kind, each in expected.items():
            assert each <= found[kind] / parameters <= each + 2.1, kind
    memory = of_rank(ended, 1)["memory"]["1"]
    assert memory["by_purpose"]["weights"] > 0
    assert len(memory["steps"]) == len(expected) * 2


def test_the_native_trainer_at_full_size(launch, tmp_path):
    numpy.random.default_rng(0).integers(0, 99, 200_000).astype(numpy.uint16).tofile(tmp_path / "text.bin")
    with (tmp_path / "text.idx").open("wb") as stream:
        write_index(stream, numpy.dtype(numpy.uint16), numpy.full(200, 1000, numpy.int32))
    # A step's loss mask is larger than what holds values, one micro batch's part of it is not.
    sizes = (
        "--num-layers 1 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048"
    )
    batch = "--micro-batch-size 8 --global-batch-size 32 --train-iters 9 --eval-iters 0 --split 1,0,0"
    more = "--lr 1e-4 --vocab-size 100 --data-path text --bf16 --attention-dropout 0 --hidden-dropout 0"
    options = ["--device", "npu-emulated", "--full-size", "--log-dir", "run", "--native", "megatron"]
    ended = launch(*options, *sizes.split(), *batch.split(), *more.split())
    assert ended.returncode == 0, ended.stderr[-3000:]
    facts = json.loads((tmp_path / "run" / "rehearsal.json").read_text())["ranks"]["0"]
    assert facts["operators"]["npu::npu_gelu"] == facts["operators"]["npu::npu_fusion_attention"] == 2 * 4
    assert facts["full_size"]["memory"]["0"]["by_purpose"]["optimizer states"] > 8 * 12 * 4096**2


def test_fit_finds_the_micro_batch_that_fits_and_leaves_the_file_as_it_was(job, tmp_path):
    configuration = tmp_path / "ds.json"
    text = json.dumps({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "zero_optimization": {}})
    configuration.write_text(text)
    ended = job(
        *("full_size_fit.py", "--deepspeed_config", str(configuration)),
        options=["--full-size", "--fit", "--memory", "32"],
    ).check()
    rows = [
        line.removeprefix("ascend-run: ").split("  ") for line in ended.stderr.splitlines() if "micro batch" in line
    ]
    table = [[cell.strip() for cell in row if cell] for row in rows if len(row) > 3]
    assert [(row[0], row[3], row[4]) for row in table] == [
        ("no recomputation, micro batch 2, ZeRO-0 (as given)", "no", "yes"),
        ("no recomputation, micro batch 1, ZeRO-0", "yes", "yes"),
    ]
    fits = json.loads((ended.run_dir / "fits" / "ds.json").read_text())
    assert (fits["train_micro_batch_size_per_gpu"], fits["gradient_accumulation_steps"]) == (1, 2)
    assert configuration.read_text() == text


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
