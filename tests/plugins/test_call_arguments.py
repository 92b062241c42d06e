"""Calls with arguments that a wrapper does not know: nothing is dropped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ascend_adapt.errors import PatchDrift
from ascend_adapt_plugins import call_arguments
from ascend_adapt_plugins.megatron_deepspeed import attention, attention_masks, loss
from ascend_adapt_plugins.megatron_lm import collectives, fused_operations

NAMES = ("input", "mask")


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {"mask": 2}, {"input": 1, "mask": 2}),
        ((1, 2), {}, {"input": 1, "mask": 2}),
        ((1, 2, 3), {}, None),
        ((1,), {"sinks": 3}, None),
    ],
)
def test_arguments_by_their_names(args, kwargs, expected) -> None:
    assert call_arguments.known(NAMES, args, kwargs) == expected
    if expected is not None:
        assert call_arguments.expected("p.a", NAMES, args, kwargs) == expected


def test_where_numbers_would_be_wrong_it_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        PatchDrift, match="p.a: its target was called with 1 by position, sinks, expected no others than "
    ):
        call_arguments.expected("p.a", NAMES, (1,), {"sinks": 3})
    with pytest.raises(PatchDrift, match="--disable megatron_deepspeed.mask_and_causal goes on"):
        attention_masks.mask_and_causal.function(None, None, (1, 2, 3), {})


@pytest.mark.parametrize(
    "patch",
    [
        attention.fused_attention,
        collectives.all_reduce_of_float64,
        fused_operations.fused_attention,
        fused_operations.loss_without_a_copy,
        loss.fused_loss,
        loss.fused_loss_of_mpu,
    ],
    ids=lambda patch: patch.name,
)
def test_a_call_with_something_new_is_for_upstreams_own_code(patch) -> None:
    def own(*args, **kwargs):
        return args, kwargs

    assert patch.function(own, SimpleNamespace(), (1, 2), {"sinks": 3}) == ((1, 2), {"sinks": 3})


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
