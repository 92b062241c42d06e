"""masked_softmax compared with a float64 oracle, and with known results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from error_bounds import COMPUTED_IN, ELEMENTARY, assert_within, of_exponent
from kernels import oracle

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import masked_out_from_keep, masked_softmax
from ascend_adapt.kernels.operators.masked_softmax import FINITE, FINITE_ZEROED, masked_softmax_as


def mask_of(*shape):
    mask = np.random.default_rng(1).random(shape) < 0.4
    mask[..., :2, :] = True
    return mask


CASES = {
    "plain": ((2, 3, 5, 7), {}),
    "one": ((1, 1, 1, 1), {}),
    **{f"length {length}": ((1, 2, length, length), {"causal": True}) for length in (3, 17, 127, 129)},
    "causal, Q < K": ((2, 2, 5, 9), {"causal": True}),
    "causal, Q > K": ((2, 2, 9, 5), {"causal": True}),
    "mask": ((2, 3, 9, 7), {"masked_out": mask_of(2, 1, 9, 7)}),
    "mask of keys": ((2, 3, 9, 7), {"masked_out": np.arange(14).reshape(2, 1, 1, 7) % 3 == 1}),
    "mask, causal": ((2, 3, 9, 9), {"masked_out": mask_of(9, 9), "causal": True}),
    "three axes": ((3, 9, 7), {"masked_out": mask_of(9, 7)}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", list(COMPUTED_IN))
def test_it_satisfies_the_contract(case, dtype):
    shape, rules = CASES[case]
    rng = np.random.default_rng(2)
    x, grad = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for _ in range(2))
    given = {name: torch.from_numpy(value) if name == "masked_out" else value for name, value in rules.items()}
    x.requires_grad_()
    result = masked_softmax(x, scale=0.5, **given)
    result.backward(grad)
    right = oracle.masked_softmax(x.detach().double().numpy(), grad.double().numpy(), scale=0.5, **rules)
    assert result.dtype == x.grad.dtype == dtype
    terms = oracle.masked_softmax_terms(right[0], grad.double().numpy(), scale=0.5)
    computed = 2 * shape[-1] + of_exponent(x.detach().double().numpy()) + ELEMENTARY
    # The gradient is of the rounded result.
    for mine, true, size, stored in zip((result, x.grad), right, terms, (1, 3), strict=True):
        assert_within(mine, true, size, (computed, COMPUTED_IN[dtype]), (stored, dtype))


def row(*scores):
    return torch.tensor(scores).view(1, 1, 1, -1)


def test_the_third_of_three_is_masked_out():
    third = torch.tensor([False, False, True])
    found = masked_softmax(row(1.0, 2.0, 3.0), masked_out=third, scale=0.5)
    torch.testing.assert_close(found, row(0.377541, 0.622459, 0.0), atol=1e-6, rtol=0)
    # Scores of any size: a fill of -10000 would treat them as masked out.
    found = masked_softmax(row(-20000.0, -20000.0, -20000.0), masked_out=third)
    assert found.tolist() == row(0.5, 0.5, 0.0).tolist()


def test_a_fully_masked_row_is_zero_and_has_no_gradient():
    x = row(1.0, 2.0, 3.0).requires_grad_()
    found = masked_softmax(x, masked_out=torch.ones(3, dtype=torch.bool))
    found.sum().backward()
    assert found.eq(0).all()
    assert x.grad.eq(0).all()


def test_one_query_attends_to_all_keys():
    torch.testing.assert_close(masked_softmax(row(0.0, 0.0, 0.0), causal=True), row(1 / 3, 1 / 3, 1 / 3))


def test_the_scale_may_be_a_one_element_tensor():
    x = torch.randn(1, 1, 3, 3)
    torch.testing.assert_close(masked_softmax(x, scale=torch.tensor([0.5])[0]), masked_softmax(x, scale=0.5))


def test_the_finite_fills_differ_in_fully_masked_rows_and_for_low_scores():
    third, everything = torch.tensor([False, False, True]), torch.ones(3, dtype=torch.bool)
    scores, low = row(1.0, 2.0, 3.0), row(-20000.0, -20000.0, -20000.0)
    for fill in (FINITE, FINITE_ZEROED):
        torch.testing.assert_close(
            masked_softmax_as(fill, scores, masked_out=third), masked_softmax(scores, masked_out=third)
        )
    assert masked_softmax_as(FINITE, low, masked_out=third).tolist() == row(0.0, 0.0, 1.0).tolist()
    assert masked_softmax_as(FINITE_ZEROED, low, masked_out=third).tolist() == row(0.0, 0.0, 0.0).tolist()
    torch.testing.assert_close(masked_softmax_as(FINITE, scores, masked_out=everything), row(*[1 / 3] * 3))
    assert masked_softmax_as(FINITE_ZEROED, scores, masked_out=everything).eq(0).all()


@pytest.mark.parametrize(
    ("x", "given", "words"),
    [
        (torch.randn(2, 3, 4, 5), {"masked_out": torch.zeros(4, 5)}, "masked_out: is torch.float32 [4, 5], expected a"),
        (
            torch.randn(2, 3, 4, 5),
            {"masked_out": torch.zeros(2, 4, 5, dtype=torch.bool)},
            "masked_out: has shape [2, 4, 5], expected a shape that broadcasts to the scores [2, 3, 4, 5]",
        ),
        (torch.randn(2, 5), {"scale": torch.ones(5)}, "scale: is torch.float32 [5], expected a number"),
        (torch.randn(2, 5), {"scale": None}, "scale: is None, expected a number"),
        (torch.randn(5), {}, "x: has shape [5], expected scores"),
        (torch.zeros(2, 2, dtype=torch.int64), {}, "x: is torch.int64 [2, 2], expected a float tensor"),
    ],
)
def test_wrong_arguments_are_refused(x, given, words):
    with pytest.raises(KernelArgumentError) as caught:
        masked_softmax(x, **given)
    assert words in str(caught.value)


def test_keep_must_be_bool():
    with pytest.raises(KernelArgumentError, match=r"keep: is torch.float32 \[2\], expected a bool tensor"):
        masked_out_from_keep(torch.zeros(2))
