"""Queries of plugins about a mask before they choose a kernel."""

from __future__ import annotations

import pytest
import torch

from ascend_adapt.kernels import masks


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (1, 4)])
def test_a_mask_of_just_the_future_is_causal(queries, keys):
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).triu_(keys - queries + 1)
    assert masks.is_causal(mask, queries, keys)
    assert masks.is_causal(mask.expand(2, 1, -1, -1), queries, keys)
    assert not masks.is_causal(mask[..., :1], queries, keys)
    mask[..., -1, 0] = True
    assert not masks.is_causal(mask, queries, keys)


def test_a_mask_that_was_read_is_not_kept_alive():
    mask = torch.ones(2, 2, dtype=torch.bool).triu_(1)
    masks.is_causal(mask, 2, 2)
    identity = id(mask)
    assert identity in masks._causal
    del mask
    assert identity not in masks._causal
