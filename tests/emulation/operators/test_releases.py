"""Kernels get their arguments by name from a release's schema: every recorded release has those that they need."""

from __future__ import annotations

import inspect
import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch

from ascend_adapt.emulation import operators
from ascend_adapt.emulation.operators.fusion_attention.arguments import Arguments, by_one_name
from ascend_adapt.emulation.operators.kernel import parameter_of

RELEASES = json.loads((Path(__file__).parents[2] / "upstream" / "torch_npu.json").read_text())["releases"]
ENTRIES = [entry for family in operators.FAMILIES for entry in operators.kernels_of(family)]


def needs(entry):
    if "fusion_attention" in entry.operator:
        return {field.name for field in fields(Arguments) if field.default is MISSING}
    parameters = inspect.signature(entry.function).parameters.values()
    return {one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD}


def takes(entry):
    return set(entry.takes or inspect.signature(entry.function).parameters)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_what_the_kernels_need(release):
    for entry in ENTRIES:
        text = RELEASES[release].get(entry.operator)
        if text is None:
            continue
        schema = torch._C.parse_schema(text)
        names = {parameter_of(argument.name, takes(entry)) for argument in schema.arguments}
        if "fusion_attention" in entry.operator:
            names = set(by_one_name(dict.fromkeys(names)))
        assert needs(entry) <= names, entry.operator


# Arguments that a kernel ignores while they have their defaults.
_NOT_TAKEN_BY = {
    "npu_diou": "is_cross mode",
    "npu_diou_backward": "is_cross mode",
    "npu_dynamic_quant": "dst_type_max",
    "npu_dynamic_quant_asymmetric": "dst_type_max",
    "npu_grouped_matmul": "activation_input activation_quant_offset activation_quant_scale offset "
    "per_token_scale_dtype scale_dtype weight_dtype x_dtype",
    "npu_grouped_matmul.List": "activation_input activation_quant_offset activation_quant_scale offset",
    "npu_grouped_matmul_swiglu_quant": "bias offset",
    "npu_moe_finalize_routing": "k",
    "npu_moe_init_routing_quant": "drop_pad_mode expert_capacity expert_tokens_before_capacity_flag",
    "npu_moe_init_routing_v2": "drop_pad_mode expert_capacity x_dtype",
    "npu_moe_re_routing": "tokens_dtype",
    "npu_quant_scatter": "dst_type round_mode",
    "npu_quant_scatter_": "dst_type round_mode",
    "npu_masked_softmax_with_rel_pos_bias": "inner_precision_mode",
    "npu_moe_gating_top_k": "input_ids tid2eid",
    "npu_moe_token_permute_grad": "padded_mode",
    "npu_moe_token_permute_grad_v2": "padded_mode",
    "npu_moe_token_unpermute_grad": "padded_mode",
    "npu_moe_token_unpermute_grad_v2": "padded_mode",
    "npu_quant_matmul": "group_sizes pertoken_scale_dtype scale_dtype x1_dtype x2_dtype y_scale",
    "npu_trans_quant_param": "round_mode",
    "npu_weight_quant_batchmatmul": "inner_precise weight_dtype",
}
NOT_TAKEN = {
    *((operator, name) for operator, names in _NOT_TAKEN_BY.items() for name in names.split()),
    ("npu_cross_entropy_loss_backward", "lse_square_scale_for_zloss"),
    ("npu_dtype_cast", "input_dtype"),
    ("npu_dtype_cast_backward", "input_dtype"),
    ("npu_format_cast_", "customize_dtype"),
    ("npu_format_cast_", "input_dtype"),
    ("npu_format_cast_.acl_format", "customize_dtype"),
    ("npu_format_cast_.acl_format", "input_dtype"),
}


def test_arguments_that_kernels_ignore_are_known():
    left = set()
    for entry in ENTRIES:
        for argument in torch._C.parse_schema(RELEASES["2.13.0"][entry.operator]).arguments:
            if parameter_of(argument.name, takes(entry)) not in takes(entry):
                left.add((entry.operator, argument.name))
    assert left == NOT_TAKEN
