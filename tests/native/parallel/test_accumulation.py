"""Linear layers that accumulate the gradients of their weights; what they compute, test_zero compares."""

from __future__ import annotations

import functools

import torch

from ascend_adapt.native.parallel import accumulation


def test_compiled_code_has_plain_linear_layers_and_does_not_query_the_device(monkeypatch):
    """A query would break its graph."""
    queries, products = [], []
    monkeypatch.setattr(accumulation, "are_fused", lambda device: not queries.append(device))
    weight = accumulation.ComputeWeight(torch.randn(4, 3))
    weight.add_product = functools.partial(lambda *given: not products.append(given))
    x = torch.randn(2, 5, 3)
    compiled = torch.compile(lambda x: accumulation.linear(x, weight, None), backend="eager", fullgraph=True)
    compiled(x).sum().backward()
    assert (queries, products) == ([], [])
    torch.testing.assert_close(weight.grad, x.sum((0, 1)).expand(4, 3))
    accumulation.linear(x, weight, None).sum().backward()
    assert len(products) == 1
