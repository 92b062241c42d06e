"""Every mesh trains as one process does. What takes longer is in every_mesh.py (make native-matrix)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from native.conftest import assert_equal_to_one_process, one_process
from native.small_models import Case

TWO_RANKS = [
    Case("tensor", "gpt2", {"tensor": 2}),
    Case("sequence", "gated", {"tensor": 2, "sequence": True}),
    Case("zero-1", "gpt2", {"data": 2, "zero_stage": 1}, loss_mean="tokens"),
    Case("zero-3", "neox", {"data": 2, "zero_stage": 3, "recompute": "full"}),
    Case("interleaved", "gpt2", {"pipeline": 2, "virtual_stages": 2}, loss_mean="tokens"),
]


def test_two_ranks(train_on):
    told = train_on(2, TWO_RANKS)
    for case in TWO_RANKS:
        assert_equal_to_one_process(told[case.name], case)


def test_tensor_by_pipeline(train_on):
    case = Case("tensor x pipeline", "gpt2", {"tensor": 2, "pipeline": 2})
    assert_equal_to_one_process(train_on(4, [case])[case.name], case)


def test_another_model_is_seen():
    case = Case("tensor", "gpt2", {"tensor": 2})
    told = one_process(case.model)
    assert_equal_to_one_process(told, case)
    for wrong in ({"norms": [norm * 1.0002 for norm in told.norms]}, {"losses": [*told.losses[:-1], 3.79]}):
        with pytest.raises(AssertionError):
            assert_equal_to_one_process(replace(told, **wrong), case)
    with pytest.raises(AssertionError):
        assert_equal_to_one_process(told, replace(case, model="neox"))
