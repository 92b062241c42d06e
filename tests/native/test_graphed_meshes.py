"""Steps as graphs equal eager ones bit for bit on every mesh, also in a run that was saved and resumed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from native.in_flight import InFlight
from native.small_models import Case

STEPS = 12
TWO_RANKS = [
    Case("zero-1", "gpt2", {"data": 2, "zero_stage": 1, "micro": 4}, dtype="bf16", steps=STEPS),
    Case("zero-3", "gpt2", {"data": 2, "zero_stage": 3, "micro": 2}, dtype="bf16", steps=STEPS),
    Case("tensor", "gated", {"tensor": 2, "sequence": True, "micro": 4}, dtype="bf16", steps=STEPS),
    Case("pipeline", "gpt2", {"pipeline": 2, "micro": 2}, dtype="bf16", steps=STEPS),
]
OTHERS = [
    Case("zero-0", "gpt2", {"data": 2, "micro": 2}, dtype="bf16", steps=STEPS),
    Case("zero-2", "neox", {"data": 2, "zero_stage": 2, "micro": 2}, steps=STEPS),
    Case("interleaved", "gpt2", {"pipeline": 2, "virtual_stages": 2, "micro": 2}, dtype="bf16", steps=STEPS),
]
FOUR_RANKS = [
    Case("tensor x pipeline", "gpt2", {"tensor": 2, "pipeline": 2, "micro": 2}, dtype="bf16", steps=STEPS),
    Case("interleaved on four", "gpt2", {"pipeline": 4, "virtual_stages": 2, "stages": [1, 0] * 4}, steps=STEPS),
]


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, TWO_RANKS),
        pytest.param(2, OTHERS, marks=pytest.mark.every_case),
        pytest.param(4, FOUR_RANKS, marks=pytest.mark.every_case),
    ],
    ids=["two ranks", "others", "four ranks"],
)
def test_graphs_are_bit_for_bit_eager_steps(results_of, ranks, cases):
    options = ("--nproc", str(ranks), "--device", "cpu", "--cuda-code", "off")
    ranks_results = results_of("train_graphed.py", cases, *options)
    # Three eager steps, then one whose update is eager; the resumed run begins with step 6.
    expected = {"graphed": [], "resumed": [], "replays": [[9, 8]], "replays_resumed": [[3, 2]], "races": []}
    expected["skipped"] = [7, 10]
    for case in cases:
        # The last stage of a pipeline waits for each of its transfers at once.
        overlapped = [results[case.name].pop("overlapped") for results in ranks_results]
        assert any(overlapped), f"{case.name}: no collective was in flight, so none was watched"
        assert [results[case.name] for results in ranks_results] == [expected] * ranks, case.name


@pytest.mark.parametrize("early", ["read", "write", "none"])
def test_a_tensor_that_is_touched_before_the_wait_is_found(early):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with InFlight() as watched:
            numbers = torch.ones(4)
            other = torch.ones(4)
            work = dist.all_reduce(numbers, async_op=True)
            other += numbers if early == "read" else 1
            if early == "write":
                numbers.zero_()
            work.wait()
            other += numbers
    finally:
        dist.destroy_process_group()
    assert watched.most == 1
    assert watched.races == {"read": ["aten.add_.Tensor"], "write": ["aten.zero_.default"], "none": []}[early]
