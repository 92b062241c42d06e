from __future__ import annotations

import dataclasses
import json

import pytest
from deepspeed.runtime.utils import partition_balanced
from native.configurations import config

from ascend_adapt.config.partition import balanced_stages, padded
from ascend_adapt.config.train_config import Batch, Init, Model, Parallel
from ascend_adapt.config.yaml_file import from_dict, to_dict
from ascend_adapt.errors import ConfigError


def test_what_was_kept_is_what_was_meant():
    whole = config(model={"init": Init("xavier_uniform")}, data={"train": ("0.5", "a", "0.5", "b")})
    assert from_dict(json.loads(json.dumps(to_dict(whole)))) == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kept: kept["model"].update(layers=3), "config.model: unknown layers, expected vocab_size"),
        (lambda kept: kept["model"].pop("hidden_size"), "config.model: .*hidden_size"),
        (lambda kept: kept.update(parallel=3), "config.parallel: 3, expected names and values"),
        (lambda kept: kept["model"].update(hidden_size="wide"), "config.model.hidden_size: 'wide', expected int"),
        (lambda kept: kept["model"].update(parallel_residual=1), "config.model.parallel_residual: 1, expected bool"),
        (lambda kept: kept["data"].update(train="text"), "config.data.train: 'text', expected tuple"),
        (lambda kept: kept["optimizer"].update(eps=None), "config.optimizer.eps: None, expected float"),
        (lambda kept: kept["checkpoint"].update(keep_last=0), "checkpoints to keep: 0, expected at least 1"),
        (
            lambda kept: kept["precision"].update(dtype="fp16", reduce="bf16"),
            "reduce: 'bf16', expected 'fp32' or 'fp16",
        ),
        (
            lambda kept: kept["precision"].update(dtype="bf16", reduce="fp16"),
            "reduce: 'fp16', expected 'fp32' or 'bf16",
        ),
        (lambda kept: kept["parallel"].update(tensor=3), "num_heads: 4, expected a multiple of tensor parallel size 3"),
    ],
)
def test_what_was_kept_and_changed_is_checked(change, message):
    kept = to_dict(config())
    change(kept)
    with pytest.raises(ConfigError, match=message):
        from_dict(kept)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"parallel": Parallel(stages=(1,))}, r"stages: \(1,\), expected numbers of at least 0 whose sum is 2"),
        ({"parallel": Parallel(pipeline=2, stages=(3, -1))}, r"stages: \(3, -1\), expected numbers of at least 0"),
        ({"parallel": Parallel(stages=(1, 1))}, "stages: 2, expected 1 pipeline ranks x 1 virtual stages"),
        ({"batch": Batch(2, 2, 5)}, "batch: 5, expected micro 2 x accumulation 2 x data-parallel size 1 = 4"),
        ({"data": {"seq_length": 65}}, "seq_length: 65, expected at most max_positions = 64"),
        (
            {"parallel": Parallel(tensor=4, stages=(2,), sequence=True), "data": {"seq_length": 30}},
            r"seq_length: 30, expected a multiple of tensor parallel size \(sequence parallel\) 4",
        ),
        (
            {"model": {"num_query_groups": 2}, "parallel": Parallel(tensor=4, stages=(2,))},
            "num_query_groups: 2, expected a multiple of tensor parallel size 4",
        ),
        ({"model": {"padded_vocab_size": 249}}, "vocabulary: 250 ids, expected at most padded_vocab_size = 249"),
        ({"model": {"num_query_groups": 3}}, "num_heads: 4, expected a multiple of num_query_groups 3"),
        ({"model": {"hidden_dropout": 1.0}}, "hidden_dropout: 1.0, expected at least 0 and below 1"),
        ({"model": {"shared_norm": True}}, "shared_norm: True without parallel_residual"),
        ({"model": {"activation": "gelu_new"}}, "activation: 'gelu_new', expected one of gelu"),
        (
            {"model": {"positions": "rotary", "rotary_fraction": 0.2}},
            "0.2 of 16 is 3 dimensions, expected an even",
        ),
        ({"iterations": -1}, "iterations: -1, expected at least 0"),
    ],
)
def test_parts_that_do_not_fit_each_other(parts, message):
    with pytest.raises(ConfigError, match=message):
        config(**parts)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"zero_stage": 2, "pipeline": 2}, "zero_stage: 2 with 2 pipeline stages, expected stage 0 or 1"),
        ({"virtual_stages": 2}, "virtual_stages: 2 on 1 pipeline rank"),
        ({"tensor": 0}, "tensor: 0, expected at least 1"),
        ({"recompute": "some"}, "recompute: 'some', expected one of none, full, selective"),
    ],
)
def test_axes_that_do_not_fit_each_other(parts, message):
    with pytest.raises(ConfigError, match=message):
        Parallel(**parts)


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().iterations = 3


@pytest.mark.parametrize(("vocabulary", "multiple", "tensor", "rows"), [(50257, 128, 2, 50432), (128, 128, 1, 128)])
def test_ckpt_2(vocabulary, multiple, tensor, rows):
    assert padded(vocabulary, multiple, tensor) == rows


@pytest.mark.parametrize("layers", [4, 5, 13, 22, 44])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_uneven_stages_are_deepspeeds(layers, stages):
    """Weights of GPT-NeoX's layer list: what is no transformer layer has none."""
    weights = [0, 0] + [1] * layers + [0, 0, 0]
    bounds = partition_balanced(weights, stages)
    counted = tuple(sum(weights[begin:end]) for begin, end in zip(bounds, bounds[1:], strict=False))
    assert balanced_stages(layers, stages) == counted


def test_more_stages_than_layers():
    with pytest.raises(ConfigError, match="num_layers: 2, expected at least one layer for each of 3 stages"):
        balanced_stages(2, 3)


def test_a_model_without_defaults_for_its_sizes():
    with pytest.raises(TypeError):
        Model()
