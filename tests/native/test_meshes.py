"""Every mesh trains as one process does. What takes longer is in every_mesh.py (make native-matrix)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from native.conftest import (
    LOSS_GROWTH,
    NORM_GROWTH,
    assert_equal_to_one_process,
    largest_difference,
    one_process,
)
from native.small_models import Case, train
from native.training_bounds import perturbed

from ascend_adapt.native.parallel import mesh as meshes

STEPS = 6  # in which each model learns enough to be compared; every_mesh.py has 20
TWO_RANKS = [
    Case("sequence", "gated", {"tensor": 2, "sequence": True}, steps=STEPS),
    Case("sequence, shards of rows", "gpt2", {"tensor": 2, "sequence": True, "micro": 2}, steps=STEPS),
    Case("zero-1", "gpt2", {"data": 2, "zero_stage": 1}, loss_mean="tokens", steps=STEPS),
    Case("zero-3", "neox", {"data": 2, "zero_stage": 3, "recompute": "full"}, steps=STEPS),
    Case("glm: tensor", "glm", {"tensor": 2}, steps=STEPS),
    Case("interleaved", "gpt2", {"pipeline": 2, "virtual_stages": 2}, loss_mean="tokens", steps=STEPS),
]


def test_two_ranks(train_on):
    results = train_on(2, TWO_RANKS)
    for case in TWO_RANKS:
        assert_equal_to_one_process(results[case.name], case)


def test_a_checkpoint_resumes_with_other_stages(train_on, tmp_path):
    """Layers are numbered through all stages, the last of which may have the head alone."""
    saved = str(tmp_path / "saved")
    first = Case("first", "gpt2", {"pipeline": 2, "stages": [3, 1]}, steps=3, save=saved)
    sizes = {"pipeline": 2, "virtual_stages": 2, "stages": [0, 2, 2, 0]}
    results = train_on(2, [first, Case("then", "gpt2", sizes, steps=3, load=saved)])
    begun, ended = results["first"], results["then"]
    together = replace(
        begun,
        losses=begun.losses + ended.losses,
        norms=begun.norms + ended.norms,
        evaluated=[begun.evaluated[0], ended.evaluated[1]],
    )
    assert_equal_to_one_process(together, replace(first, steps=STEPS))


@pytest.mark.every_case
def test_tensor_by_pipeline(train_on):
    case = Case("tensor x pipeline", "gpt2", {"tensor": 2, "pipeline": 2}, steps=STEPS)
    assert_equal_to_one_process(train_on(4, [case])[case.name], case)


def test_another_model_is_seen():
    case = Case("tensor", "gpt2", {"tensor": 2}, steps=STEPS)
    results = one_process(case.model, case.steps)
    assert_equal_to_one_process(results, case)
    for wrong in ({"norms": [norm * 1.001 for norm in results.norms]}, {"losses": [*results.losses[:-1], 3.79]}):
        with pytest.raises(AssertionError):
            assert_equal_to_one_process(replace(results, **wrong), case)
    with pytest.raises(AssertionError):
        assert_equal_to_one_process(results, replace(case, model="neox"))


def test_training_magnifies_a_difference_by_no_more_than_its_bounds_assume():
    by = 2.0**-14
    with perturbed(by):
        results = train(Case("perturbed", "gpt2"), meshes.single(torch.device("cpu")))
    alone = one_process("gpt2")
    assert by / 8 < largest_difference(results.losses, alone.losses) < LOSS_GROWTH * by
    assert by / 8 < largest_difference(results.norms, alone.norms) < NORM_GROWTH * by
