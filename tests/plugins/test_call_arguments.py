"""Calls with arguments that a wrapper does not know: nothing is dropped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ascend_adapt import Call
from ascend_adapt.errors import PatchDrift
from ascend_adapt_plugins import call_arguments
from ascend_adapt_plugins.glm import attention as attention_of_glm
from ascend_adapt_plugins.gpt_neox import attention as attention_of_gpt_neox
from ascend_adapt_plugins.hf import kernel_swaps
from ascend_adapt_plugins.megatron_deepspeed import attention, attention_masks, loss
from ascend_adapt_plugins.megatron_lm import collectives, fused_operations, resuming

NAMES = ("input", "mask")


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {"mask": 2}, {"input": 1, "mask": 2}),
        ((1, 2), {}, {"input": 1, "mask": 2}),
        ((1, 2, 3), {}, None),
        ((1,), {"sinks": 3}, None),
        ((1,), {"input": 3}, None),
    ],
)
def test_arguments_by_their_names(args, kwargs, expected) -> None:
    call = Call(print, None, args, kwargs)
    assert call_arguments.known(NAMES, call) == expected
    if expected is not None:
        assert call_arguments.expected("p.a", NAMES, call) == expected


def test_where_numbers_would_be_wrong_it_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(PatchDrift, match="p.a: its target was called with 1 by position, sinks, expected only "):
        call_arguments.expected("p.a", NAMES, Call(print, None, (1,), {"sinks": 3}))
    with pytest.raises(PatchDrift, match="--disable megatron_deepspeed.masked_causal_softmax continues"):
        attention_masks.masked_causal_softmax.function(None, None, (1, 2, 3), {})


@pytest.mark.parametrize(
    "patch",
    [
        attention.fused_attention,
        attention_of_glm.fused_attention,
        attention_of_gpt_neox.fused_attention,
        kernel_swaps.fused_new_gelu,
        collectives.float64_all_reduce,
        fused_operations.fused_attention,
        fused_operations.loss_without_fp32_copy,
        loss.fused_loss,
        loss.fused_loss_mpu,
    ],
    ids=lambda patch: f"{patch.target}:{patch.name}",
)
@pytest.mark.parametrize("given", [((1, 2), {"sinks": 3}), (tuple(range(9)), {})], ids=["by name", "by position"])
def test_a_call_with_something_new_is_for_upstreams_own_code(patch, given) -> None:
    def own(*args, **kwargs):
        return args, kwargs

    assert patch.function(own, SimpleNamespace(), *given) == given


def test_metadata_is_finished_with_whatever_else_it_is_given(monkeypatch) -> None:
    monkeypatch.setattr(resuming, "_with_attributes", lambda metadata: [metadata])
    finish = resuming.keep_megatron_metadata.function

    def own(metadata, results, **more):
        return metadata, results, more

    calls = [((1, 2), {}), ((1,), {"results": 2, "new": 3}), ((), {"metadata": 1, "results": 2})]
    made = [finish(own, None, *call) for call in calls]
    assert made == [([1], 2, {}), ([1], 2, {"new": 3}), ([1], 2, {})]


def test_what_is_made_contiguous_is_not_all_that_is_passed_on() -> None:
    torch = pytest.importorskip("torch")
    across = torch.arange(4.0).view(2, 2).t()

    def own(*args, **kwargs):
        return args, kwargs

    args, kwargs = attention.contiguous_attention.function(
        own, None, (across, across), {"value_layer": across, "attention_mask": across, "sinks": 3}
    )
    assert all(value.is_contiguous() for value in (*args, kwargs["value_layer"]))
    assert (kwargs["attention_mask"] is across, kwargs["sinks"]) == (True, 3)
    args, _ = attention.contiguous_attention.function(own, None, (across, across, across, across, 3), {})
    assert args[3:] == (across, 3)
