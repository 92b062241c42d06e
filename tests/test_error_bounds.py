"""The bounds hold for any order of a sum, and what a kernel may do wrong is far outside of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from error_bounds import ELEMENTARY, assert_within, of_exponent, relative, rounding, unit_roundoff
from kernels import oracle, test_attention

from ascend_adapt.kernels import attention

FP32, BF16 = torch.float32, torch.bfloat16


def in_turn(terms: np.ndarray) -> np.float32:
    return np.cumsum(terms, dtype=np.float32)[-1]


ORDERS = {
    "in turn": in_turn,
    "from the end": lambda terms: in_turn(terms[::-1]),
    "the largest last": lambda terms: in_turn(terms[np.argsort(np.abs(terms))]),
    "in eight lanes": lambda terms: in_turn(np.cumsum(terms[: len(terms) // 8 * 8].reshape(-1, 8), 0, np.float32)[-1]),
    "in pairs": np.sum,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [8, 64, 1000, 100_000])
@pytest.mark.parametrize("positive", [False, True])
def test_a_sum_in_any_order_is_within_its_bound(order, length, positive):
    terms = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    terms = np.abs(terms) if positive else terms
    wide = terms.astype(np.float64)
    found = torch.tensor(float(ORDERS[order](terms)))
    assert_within(found, wide.sum(), np.abs(wide).sum(), (length, FP32))


def test_a_bound_grows_with_the_length_the_dtype_and_the_condition():
    assert rounding(1, BF16) == pytest.approx(2**-8, rel=2**-7)
    assert rounding(8, FP32) == pytest.approx(8 * unit_roundoff(FP32), rel=1e-6)  # every order, with certainty
    assert rounding(10_000, FP32) == pytest.approx(6 * 100 * unit_roundoff(FP32), rel=1e-3)  # but by chance
    assert relative((8, FP32, 3.0), (1, BF16)) == 3 * rounding(8, FP32) + rounding(1, BF16)


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 3.0])
def test_what_is_no_rounding_is_named(wrong):
    found = torch.tensor([[1.0, 2.0]])
    right = np.array([[1.0, wrong]])
    with pytest.raises(AssertionError, match="dq"):
        assert_within(found, right, 1.0, (4, FP32), name="dq")
    assert_within(torch.tensor(right), right, 1.0, (4, FP32))


COLUMNS, WIDTH = 9001, 6


def gradient(hidden, weight, labels, sums=FP32, smoothing=0.1, products=FP32, columns=COLUMNS):
    """Return the gradient of hidden of a linear cross entropy, with what may be done wrong in it."""
    logits = hidden @ weight.T
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    total = exponentials.to(sums).cumsum(-1)[:, -1:].to(FP32)
    target = torch.full_like(logits, smoothing / COLUMNS)
    target[range(len(labels)), labels] += 1 - smoothing
    of_logits = (exponentials / total - target)[:, :columns]
    return (of_logits.to(products) @ weight[:columns].to(products)).to(FP32)


@pytest.mark.parametrize(
    ("wrong", "caught"),
    [
        ({}, False),
        ({"sums": torch.float64}, False),
        ({"sums": BF16}, True),
        ({"products": BF16}, True),
        ({"products": torch.float16}, True),
        ({"smoothing": 0.101}, True),
        ({"columns": COLUMNS - 1}, True),
    ],
    ids=str,
)
def test_a_wrong_cross_entropy_is_outside_its_bound(wrong, caught):
    """The case that a bound from one machine called wrong on another: 9001 columns, in fp32."""
    torch.manual_seed(0)
    labels = torch.randint(0, COLUMNS, (5,))
    hidden, weight = (torch.randint(-2, 3, (size, WIDTH)).float() / 2 for size in (5, COLUMNS))
    weight[-1] = hidden[0]  # the last column counts for the first token
    h, w = hidden.double().numpy(), weight.double().numpy()
    _, of_logits = oracle.cross_entropy(h @ w.T, labels.tolist(), label_smoothing=0.1)
    _, terms = oracle.cross_entropy_terms(h @ w.T, labels.tolist(), label_smoothing=0.1)
    steps = (COLUMNS + of_exponent(h @ w.T) + 2 * ELEMENTARY, FP32), (COLUMNS, FP32)

    def check():
        assert_within(gradient(hidden, weight, labels, **wrong), of_logits @ w, terms @ np.abs(w), *steps)

    if caught:
        with pytest.raises(AssertionError, match="expected at most"):
            check()
    else:
        check()


def rounded(q, k, v, **rules):
    return attention(q, k.to(BF16).to(k.dtype), v, **rules)


def another_scale(q, k, v, *, scale, **rules):
    return attention(q, k, v, scale=scale * 1.001, **rules)


def one_key_less(q, k, v, **rules):
    return attention(q, k, v, masked_out=torch.arange(k.shape[2]) == k.shape[2] - 1, **rules)


def no_gradient_of_the_scores(q, k, v, **rules):
    return attention(q.detach(), k, v, **rules) + 0 * q


@pytest.mark.parametrize("wrong", [rounded, another_scale, one_key_less, no_gradient_of_the_scores])
def test_a_wrong_attention_is_outside_its_bound(wrong):
    with pytest.raises(AssertionError, match="expected at most"):
        test_attention.check("causal, 129, shared heads", FP32, wrong)
