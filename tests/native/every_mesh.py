"""Every axis and every pair of axes compared with one process: 2, 4 and 8 ranks, and 2 on an emulated NPU.

make native-matrix
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from native.conftest import LOSS_GROWTH, assert_equal_to_one_process, one_process
from native.small_models import LENGTH, MODELS, Case
from native.training_bounds import apart

from ascend_adapt.native.step.loss_scale import Scaler

FP32 = apart(MODELS["gpt2"], LENGTH, LOSS_GROWTH)
KINDS = ("gpt2", "neox", "gated", "gpt_j_tied")
ON_2 = [
    *(Case(f"tensor {model}", model, {"tensor": 2}) for model in KINDS),
    *(Case(f"sequence {model}", model, {"tensor": 2, "sequence": True}) for model in KINDS),
    *(Case(f"pipeline {model}", model, {"pipeline": 2}) for model in KINDS),
    *(Case(f"zero-{stage}", "gpt2", {"data": 2, "zero_stage": stage}) for stage in (0, 1, 2, 3)),
    Case("interleaved", "gpt2", {"pipeline": 2, "virtual_stages": 2}),
    Case("interleaved neox", "neox", {"pipeline": 2, "virtual_stages": 2, "recompute": "full"}),
    Case("recompute by twos", "gated", {"tensor": 2, "recompute": "full", "recompute_layers": 2}),
    Case("selective", "gpt2", {"tensor": 2, "sequence": True, "recompute": "selective"}),
    Case("zero-3, recompute by twos", "gpt2", {"data": 2, "zero_stage": 3, "recompute": "full", "recompute_layers": 2}),
    Case("glm: pipeline", "glm", {"pipeline": 2}),
    Case("glm: zero-2", "glm", {"data": 2, "zero_stage": 2, "recompute": "full"}),
    Case("uneven stages", "gpt2", {"pipeline": 2, "stages": [1, 3]}),
    Case("interleaved, uneven", "gpt2", {"pipeline": 2, "virtual_stages": 2, "stages": [2, 1, 1, 0]}),
    Case("embedding and head alone", "neox", {"pipeline": 2, "virtual_stages": 2, "stages": [0, 2, 2, 0]}),
    Case("fewer micro batches than stages", "gpt2", {"pipeline": 2, "micro": 8}),
]
ON_4 = [
    Case("tensor x pipeline", "gpt2", {"tensor": 2, "pipeline": 2}),
    Case("pipeline x data", "gpt2", {"pipeline": 2, "data": 2}),
    Case("tensor x data", "gpt2", {"tensor": 2, "data": 2}),
    Case("tensor x zero-3", "gpt2", {"tensor": 2, "data": 2, "zero_stage": 3}),
    Case("sequence x zero-1", "gated", {"tensor": 2, "sequence": True, "data": 2, "zero_stage": 1}),
    Case("sequence x interleaved", "neox", {"tensor": 2, "sequence": True, "pipeline": 2, "virtual_stages": 2}),
    Case("interleaved x zero-1", "gpt2", {"pipeline": 2, "virtual_stages": 2, "data": 2, "zero_stage": 1}),
    Case("four stages", "gpt2", {"pipeline": 4}),
    Case("four stages, interleaved", "gpt2", {"pipeline": 4, "virtual_stages": 2, "stages": [0, 1, 1, 0, 1, 0, 1, 0]}),
    Case("four tensor ranks", "gated", {"tensor": 4, "sequence": True}),
    Case("zero-3 on four", "neox", {"data": 4, "zero_stage": 3}),
    Case("zero-1 on four", "odd", {"data": 4, "zero_stage": 1}),
]
ON_8 = [
    Case("tensor x pipeline x data", "gpt2", {"tensor": 2, "pipeline": 2, "data": 2}),
    Case(
        "all at once",
        "neox",
        {
            "tensor": 2,
            "sequence": True,
            "pipeline": 2,
            "virtual_stages": 2,
            "data": 2,
            "zero_stage": 1,
            "recompute": "full",
        },
    ),
    Case("four stages x data, two micro batches", "neox", {"pipeline": 4, "data": 2, "micro": 2}),
]


@pytest.mark.parametrize(("ranks", "cases"), [(2, ON_2[:9]), (2, ON_2[9:]), (4, ON_4[:5]), (4, ON_4[5:]), (8, ON_8)])
def test_equal_to_one_process(train_on, ranks, cases):
    results = train_on(ranks, cases)
    for case in cases:
        assert_equal_to_one_process(results[case.name], case)


def test_bf16(train_on):
    """With fp32 master weights rounding does not accumulate: compared with one process in fp32."""
    cases = [
        Case("one", "neox", {"data": 2}, steps=10, dtype="bf16"),
        Case("pipeline", "gpt2", {"pipeline": 2}, steps=10, dtype="bf16"),
        Case("sequence", "gated", {"tensor": 2, "sequence": True}, steps=10, dtype="bf16"),
        Case("zero-3", "gpt2", {"data": 2, "zero_stage": 3, "recompute": "full"}, steps=10, dtype="bf16"),
    ]
    results = train_on(2, cases)
    for case in cases:
        alone = one_process(case.model)
        assert results[case.name].losses == pytest.approx(alone.losses[:10], rel=5e-3), case.name
        assert results[case.name].norms == pytest.approx(alone.norms[:10], rel=5e-2), case.name
        assert results[case.name].losses != pytest.approx(alone.losses[:10], rel=1e-6), case.name


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (
            2,
            [
                Case("data", "neox", {"data": 2}),
                Case("tensor", "gpt2", {"tensor": 2}),
                Case("pipeline", "gpt2", {"pipeline": 2}),
                Case("zero-3", "gpt2", {"data": 2, "zero_stage": 3}),
            ],
        ),
        (4, [Case("tensor x pipeline", "neox", {"tensor": 2, "pipeline": 2})]),
        (8, [Case("all", "gpt2", {"tensor": 2, "pipeline": 2, "data": 2, "zero_stage": 1})]),
    ],
)
def test_fp16(train_on, ranks, cases):
    """Compared with one process in fp32; from a scale that is too large, every rank skips the same steps first."""
    good = [replace(case, steps=10, dtype="fp16") for case in cases]
    large = [replace(case, name=f"{case.name}, large", initial_scale=2.0**26) for case in good]
    results = train_on(ranks, [*good, *large])
    for case in good:
        alone = one_process(case.model)
        assert results[case.name].losses == pytest.approx(alone.losses[:10], rel=5e-3), case.name
        assert results[case.name].norms == pytest.approx(alone.norms[:10], rel=5e-2), case.name
        assert not any(results[case.name].skipped)
        first = results[f"{case.name}, large"]
        assert first.skipped[0]
        assert not all(first.skipped)
        rule = Scaler(case.settings.precision)
        rule.scale = 2.0**26
        for scale, skipped in zip(first.scales, first.skipped, strict=True):
            assert scale == rule.scale
            rule.update(skipped)


def test_a_saturated_step_is_skipped(train_on):
    """An Ascend 910A saturates instead of giving Inf: its overflow flag skips the same steps as Inf on a CPU."""
    case = Case("data", "gpt2", {"data": 2}, steps=14, dtype="fp16", initial_scale=2.0**26)
    there, here = (train_on(2, [case], device=device)["data"] for device in ("npu-emulated:910A", "cpu"))
    assert 0 < sum(here.skipped) < 14
    assert (there.skipped, there.scales) == (here.skipped, here.scales)
    assert all(map(math.isfinite, there.norms))


def test_on_an_emulated_npu(train_on):
    cases = [
        Case("tensor", "gpt2", {"tensor": 2}),
        Case("sequence", "gated", {"tensor": 2, "sequence": True}),
        Case("gpt_j_tied", "gpt_j_tied", {"tensor": 2}),
        Case("pipeline", "neox", {"pipeline": 2}),
        *(Case(f"zero-{stage}", "gpt2", {"data": 2, "zero_stage": stage}) for stage in (0, 1, 2, 3)),
    ]
    results = train_on(2, cases, device="npu-emulated")
    for case in cases:
        assert_equal_to_one_process(results[case.name], case)


def test_a_checkpoint_of_four_ranks_loads_on_one_and_on_four_others(train_on, tmp_path):
    folder = str(tmp_path / "saved")
    first = Case("first", "gpt2", {"tensor": 2, "data": 2, "zero_stage": 3}, steps=10, save=folder)
    then = {
        1: [Case("one", "gpt2", {}, steps=10, load=folder)],
        2: [
            Case("stages", "gpt2", {"pipeline": 2}, steps=10, load=folder),
            Case("data", "gpt2", {"data": 2, "zero_stage": 2}, steps=10, load=folder),
        ],
        4: [Case("tensor", "gpt2", {"tensor": 4}, steps=10, load=folder)],
    }
    begun = train_on(4, [first])["first"]
    for ranks, cases in then.items():
        for name, results in train_on(ranks, cases).items():
            assert results.evaluated[0] == pytest.approx(begun.evaluated[1], rel=FP32), name
            together = type(results)(
                [*begun.losses, *results.losses],
                [*begun.norms, *results.norms],
                [begun.evaluated[0], results.evaluated[1]],
            )
            assert_equal_to_one_process(together, first)


MESHES = {
    "data": (2, {"data": 2}),
    "tensor": (2, {"tensor": 2}),
    "pipeline": (2, {"pipeline": 2}),
    "tensor x pipeline": (4, {"tensor": 2, "pipeline": 2}),
    "tensor x pipeline x data": (8, {"tensor": 2, "pipeline": 2, "data": 2}),
}


def test_a_checkpoint_of_any_mesh_resumes_on_any_other(train_on, tmp_path):
    """Each of five meshes saves after ten steps and resumes from each: the next two losses are one process.s."""
    by_ranks = {ranks: [name for name, (of, _) in MESHES.items() if of == ranks] for ranks in (2, 4, 8)}
    for ranks, names in by_ranks.items():
        train_on(ranks, [Case(name, "gpt2", MESHES[name][1], steps=10, save=str(tmp_path / name)) for name in names])
    alone, seen = one_process("gpt2"), 0
    for ranks, names in by_ranks.items():
        cases = [
            Case(f"{source} in {name}", "gpt2", MESHES[name][1], steps=2, load=str(tmp_path / source))
            for name in names
            for source in MESHES
        ]
        for name, results in train_on(ranks, cases).items():
            assert results.losses == pytest.approx(alone.losses[10:12], rel=FP32), name
            seen += 1
    assert seen == 25
