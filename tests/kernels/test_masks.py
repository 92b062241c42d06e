"""Queries of plugins about a mask before they choose a kernel."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ascend_adapt.kernels import masks


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (1, 4)])
def test_a_mask_of_just_the_future_is_causal(queries, keys):
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).triu_(keys - queries + 1)
    assert masks.is_causal(mask, queries, keys)
    assert masks.is_causal(mask.expand(2, 1, -1, -1), queries, keys)
    assert not masks.is_causal(mask[..., :1], queries, keys)
    mask[..., -1, 0] = True
    assert not masks.is_causal(mask, queries, keys)


def test_a_mask_is_read_once_also_by_layers_that_are_recomputed(monkeypatch):
    mask, hidden, answers, read = torch.ones(1, 1, 4, 4, dtype=torch.bool).triu_(1), masks.hidden, [], []
    monkeypatch.setattr(masks, "hidden", lambda *given, **named: read.append(given) or hidden(*given, **named))

    def layer(x, mask):
        answers.append(masks.is_causal(mask, 4, 4))
        return x * 2

    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(3):
        y = checkpoint(layer, y, mask, use_reentrant=True)  # it detaches what a recomputed layer gets
    y.backward()
    assert (answers, len(read)) == ([True] * 6, 1)
    mask[..., 0, 0] = True
    assert masks.is_causal(mask, 4, 4) is False


def test_a_mask_in_the_same_memory_is_read_again():
    """Collectives, ``.data`` and numpy write without a new version."""
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).triu_(1)
    assert masks.is_causal(mask.view(4, 4), 4, 4)
    assert masks.is_causal(mask.transpose(-1, -2), 4, 4) is False
    mask.numpy()[..., 0, 0] = True
    assert masks.is_causal(mask.view(4, 4), 4, 4) is False


def test_a_mask_that_was_read_is_not_kept_alive():
    mask = torch.ones(2, 2, dtype=torch.bool).triu_(1)
    before = len(masks._causal)
    masks.is_causal(mask, 2, 2)
    assert len(masks._causal) == before + 1
    del mask
    assert len(masks._causal) == before
