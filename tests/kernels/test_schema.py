from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_adapt.kernels.schema import difference

RELEASES = json.loads((Path(__file__).parents[1] / "upstream" / "torch_npu.json").read_text())["releases"]
BASE = "npu_x(Tensor self, Tensor gamma, float epsilon=1e-06, *, int mode=0) -> (Tensor, Tensor)"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (BASE, ""),
        (BASE.replace("self", "input"), ""),
        (BASE.replace("gamma", "weight"), "npu_x: has no argument gamma; has a new argument weight"),
        (BASE.replace("1e-06", "1e-05"), "npu_x: epsilon is 1e-05 by default, not 1e-06"),
        (BASE.replace("Tensor gamma", "Tensor? gamma"), "npu_x: gamma is Optional[Tensor], not Tensor"),
        (BASE.replace("float epsilon=1e-06, *", "*, float epsilon=1e-06"), "npu_x: epsilon is keyword-only"),
        (BASE.replace("*, ", ""), "npu_x: mode is also positional"),
        (BASE.replace("int mode=0", "int mode=0, int seed=0"), "npu_x: has a new argument seed=0"),
        (BASE.replace("-> (Tensor, Tensor)", "-> (Tensor, Tensor, Tensor)"), "npu_x: returns 3 values, not 2"),
        (BASE.replace("-> (Tensor, Tensor)", "-> (Tensor, int)"), "npu_x: returns (Tensor, int), not (Tensor, Tensor)"),
        (
            "npu_x(Tensor gamma, Tensor self, float epsilon=1e-06, *, int mode=0) -> (Tensor, Tensor)",
            "npu_x: input is argument 2, not 1; gamma is argument 1, not 2",
        ),
    ],
)
def test_differences_are_named(found, expected):
    assert difference(BASE, found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (BASE.replace(", *, int mode=0", ""), ""),
        (BASE.replace("int mode=0", "int mode=0, int seed=0"), ""),
        (BASE.replace("1e-06", "1e-05"), ""),
        (BASE.replace("mode=0", "mode=1"), "npu_x: mode is 1 by default, not 0"),
        (BASE.replace("int mode=0", "int mode=0, int seed"), "npu_x: has a new argument seed"),
        (BASE.replace("gamma", "weight"), "npu_x: has no argument gamma; has a new argument weight"),
    ],
)
def test_arguments_that_a_call_does_not_use_may_differ(found, expected):
    assert difference(BASE, found, frozenset({"self", "gamma", "epsilon"})) == expected


def test_several_out_arguments_are_one_list_where_they_are_registered():
    yaml = "npu_x.out(Tensor grad, *, Tensor(a!) var, Tensor(b!) m) -> (Tensor(a!), Tensor(b!))"
    assert difference(yaml, "npu_x.out(Tensor grad, *, Tensor[] out) -> (Tensor, Tensor)") == ""
    assert difference(yaml, "npu_x.out(Tensor grad, *, Tensor out) -> (Tensor, Tensor)") == (
        "npu_x.out: out is Tensor, not List[Tensor]"
    )


@pytest.mark.parametrize(
    ("operator", "release", "expected"),
    [
        ("npu_fusion_attention_grad", "2.7.1", "has no argument sink; returns 4 values, not 5"),
        ("npu_apply_rotary_pos_emb", "2.1.0.post17", "layout is 'BSH' by default, not 'BSND'"),
        ("npu_rotary_mul", "2.7.1", "has no argument rotate"),
        ("npu_dtype_cast", "2.7.1", "dtype is ScalarType, not int; has no argument input_dtype"),
        ("npu_format_cast", "2.7.1", "customize_dtype is also positional; has no argument input_dtype"),
        ("npu_apply_adam_w.out", "2.1.0.post17", ""),
        ("npu_fusion_attention", "2.14.0", ""),
    ],
)
def test_real_releases_against_the_one_kernels_are_written_for(operator, release, expected):
    found = difference(RELEASES["2.13.0"][operator], RELEASES[release][operator])
    assert found == (f"{operator}: {expected}" if expected else "")
