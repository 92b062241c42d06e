"""The Triton kernels against their references; test_triton.py runs this file in Triton's interpreter.

On a machine with a GPU: ``python -m pytest tests/kernels/triton_cases.py`` runs it compiled.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import every_pair
from error_bounds import ELEMENTARY, assert_within, of_exponent
from kernels import oracle

from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall
from ascend_adapt.kernels.operators.cross_entropy import _triton as cross_entropy
from ascend_adapt.kernels.operators.layer_norm import LayerNormCall
from ascend_adapt.kernels.operators.layer_norm import _reference as layer_norm_reference
from ascend_adapt.kernels.operators.layer_norm import _triton as layer_norm
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FINITE, FINITE_ZEROED, MaskedSoftmaxCall
from ascend_adapt.kernels.operators.masked_softmax import _reference as softmax_reference
from ascend_adapt.kernels.operators.masked_softmax import _triton as softmax
from ascend_adapt.kernels.operators.rms_norm import RmsNormCall
from ascend_adapt.kernels.operators.rms_norm import _reference as rms_norm_reference
from ascend_adapt.kernels.operators.rms_norm import _triton as rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP32, FP64 = torch.float32, torch.float64
DTYPES = (FP32, torch.float16, torch.bfloat16)
# Triton's interpreter truncates bf16 where a GPU rounds: that may be a whole ulp, two unit roundoffs.
ROUNDINGS = {dtype: 2 if dtype == torch.bfloat16 and DEVICE == "cpu" else 1 for dtype in DTYPES}


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def forward_backward(implementation, call_type, tensor, grad, *more):
    """Return the result and the gradient of ``tensor``."""
    leaf = tensor.clone().requires_grad_()
    result = implementation.run(call_type(leaf, *more))
    result.backward(grad.to(result.dtype))
    return result.detach(), leaf.grad


SHAPES = [(1, 1, 1, 1), (2, 3, 5, 3), (1, 2, 17, 17), (1, 1, 12, 129), (3, 5, 1000), (4, 33)]
MASKS = ["none", "full", "row", "head", "nothing seen"]


def mask_of(kind: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "row":
        return torch.rand(shape[-1]) < 0.3
    if kind == "head":
        return torch.rand((*shape[:-2], 1, shape[-1])) < 0.3
    mask = torch.rand(shape) < 0.3
    if kind == "nothing seen":
        mask[..., 0, :] = True
    return mask


def check_softmax(x, grad, hidden, scale, *rest):
    found = forward_backward(softmax, MaskedSoftmaxCall, x, grad, hidden, scale, *rest)
    right = forward_backward(softmax_reference, MaskedSoftmaxCall, x.to(FP64), grad, hidden, scale, *rest)
    shares, scale = numbers(right[0]), abs(float(scale))
    _, dx_terms = oracle.masked_softmax_terms(shares, numbers(grad), scale=scale)
    # The scores, the sum of their exponentials, and for the gradient the sum over the row.
    computed = x.shape[-1] + of_exponent(scale * numbers(x)) + ELEMENTARY
    assert_within(found[0], right[0], shares, (computed, FP32), (ROUNDINGS[x.dtype], x.dtype))
    # The gradient is computed from the rounded result.
    steps = (computed + x.shape[-1], FP32), (3 * ROUNDINGS[x.dtype], x.dtype)
    assert_within(found[1], right[1], dx_terms, *steps)


@pytest.mark.parametrize(
    ("shape", "mask", "causal", "fill"), every_pair(SHAPES, MASKS, [False, True], [EXACT, FINITE, FINITE_ZEROED])
)
def test_softmax(shape, mask, causal, fill):
    torch.manual_seed(0)
    hidden = mask_of(mask, shape)
    for dtype in DTYPES if mask == "full" else (FP32,):
        x, grad = torch.randn(shape, dtype=dtype) * 3, torch.randn(shape, dtype=dtype)
        x, grad = x.to(DEVICE), grad.to(DEVICE)
        rest = (None if hidden is None else hidden.to(DEVICE), torch.tensor(0.5), causal, fill)
        assert softmax.supports(MaskedSoftmaxCall(x, *rest)) == ""
        check_softmax(x, grad, *rest)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fill", [EXACT, FINITE, FINITE_ZEROED])
def test_softmax_of_rows_wider_than_a_tile(fill, causal):
    torch.manual_seed(0)
    shape = (1, 1, 3, 20011)
    x, grad = torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    hidden = (torch.rand(shape) < 0.3).to(DEVICE)
    hidden[..., 0, :] = True
    check_softmax(x, grad, hidden, 2.0, causal, fill)


@pytest.mark.parametrize("score", [-20000.0, 20000.0])
def test_softmax_masks_scores_of_any_size_exactly(score):
    x = torch.full((1, 3), score, device=DEVICE)
    hidden = torch.tensor([False, False, True], device=DEVICE)
    assert softmax.run(MaskedSoftmaxCall(x, hidden)).tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("score", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("columns", [64, 20011])
def test_softmax_of_large_scores_is_as_exact_as_of_small_ones(score, columns):
    """Only differences of scores matter, and these are exact here."""
    torch.manual_seed(0)
    x = (torch.randint(0, 8, (3, columns)) + score).to(DEVICE)
    right = numbers(x.double().softmax(-1))
    # The differences of the scores are below 8.
    assert_within(softmax.run(MaskedSoftmaxCall(x)), right, right, (columns + 16 + 2 * ELEMENTARY, FP32))


def test_softmax_of_rows_fully_masked_by_a_float_mask():
    """transformers' float masks hold the smallest number of their dtype; minus infinity would give zeros."""
    x = torch.full((2, 8), torch.finfo(torch.float32).min, device=DEVICE)
    assert softmax.run(MaskedSoftmaxCall(x)).tolist() == softmax_reference.run(MaskedSoftmaxCall(x)).tolist()
    assert softmax.run(MaskedSoftmaxCall(x)).sum() == 2


def test_softmax_takes_scores_that_are_not_contiguous():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, device=DEVICE).transpose(1, 2)
    check_softmax(x, torch.randn(2, 3, 5, device=DEVICE), None, 1.0)


def test_softmax_says_what_it_does_not_take():
    assert "float64" in softmax.supports(MaskedSoftmaxCall(torch.zeros(2, 2, dtype=torch.float64)))
    assert "four axes" in softmax.supports(MaskedSoftmaxCall(torch.zeros(1, 1, 1, 1, 1)))
    assert "no scores" in softmax.supports(MaskedSoftmaxCall(torch.zeros(0, 2)))
    scale = torch.tensor(2.0, requires_grad=True)
    assert "requires grad" in softmax.supports(MaskedSoftmaxCall(torch.zeros(2, 2), scale=scale))


def check_cross_entropy(losses, gradient, logits, labels, smoothing, grad):
    given = numbers(logits), labels.tolist()
    right, dx = oracle.cross_entropy(*given, label_smoothing=smoothing)
    terms, dx_terms = oracle.cross_entropy_terms(*given, label_smoothing=smoothing)
    computed = (logits.shape[-1] + of_exponent(given[0]) + 2 * ELEMENTARY, FP32)
    assert losses.dtype == FP32
    assert_within(losses, right, terms, computed)
    factor = numbers(grad)[:, None]
    assert_within(gradient, dx * factor, dx_terms * np.abs(factor), computed, (ROUNDINGS[logits.dtype], logits.dtype))


@pytest.mark.parametrize(("columns", "smoothing", "padded"), every_pair([1, 7, 1000, 20011], [0.0, 0.1], [False, True]))
def test_cross_entropy(columns, smoothing, padded):
    torch.manual_seed(0)
    labels = torch.randint(0, columns, (9,))
    labels[3] = -100
    grad = torch.randn(9)
    for dtype in DTYPES if columns < 1000 else (FP32,):
        wide = torch.randn(9, columns + 5, dtype=dtype) * 4
        logits = wide[:, :columns] if padded else wide[:, :columns].contiguous()
        rest = labels.to(DEVICE), -100, smoothing, None, 0, columns
        found = forward_backward(cross_entropy, CrossEntropyCall, logits.to(DEVICE), grad.to(DEVICE), *rest)
        check_cross_entropy(*found, logits, labels, smoothing, grad)


@pytest.mark.parametrize("strides", [(0, 1), (3, 1), (0, 0)])
def test_cross_entropy_of_rows_that_share_memory_gives_each_its_gradient(strides):
    torch.manual_seed(0)
    rows = torch.randn(40, device=DEVICE).as_strided((5, 7), strides)
    labels, leaf = torch.arange(5, device=DEVICE), rows.detach().requires_grad_()
    losses = cross_entropy.run(CrossEntropyCall(leaf, labels, vocabulary=7))
    losses.sum().backward()
    check_cross_entropy(losses, leaf.grad, rows, labels, 0.0, torch.ones(5))


def test_cross_entropy_of_a_label_outside_the_vocabulary_is_nan():
    labels = torch.tensor([0, 9], device=DEVICE)
    losses = cross_entropy.run(CrossEntropyCall(torch.zeros(2, 4, device=DEVICE), labels, vocabulary=4))
    assert losses.isnan().tolist() == [False, True]


def test_cross_entropy_takes_labels_that_are_not_contiguous():
    labels, logits = torch.tensor([0, 3, 1, 3, 2, 3], device=DEVICE)[::2], torch.randn(3, 4, device=DEVICE)
    found, right = (
        forward_backward(
            cross_entropy, CrossEntropyCall, logits, torch.ones(3, device=DEVICE), each, -100, 0.0, None, 0, 4
        )
        for each in (labels, labels.clone())
    )
    assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))


def test_cross_entropy_over_ranks():
    """Two ranks' columns, reduced by hand as all_reduce does."""
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 10), torch.tensor([0, 4, 5, 9, -100, 7])
    halves = logits.to(DEVICE).split(5, -1)
    tops, results, gradients = [], [], []

    class Ranks:
        """Replacement of torch.distributed.all_reduce for two ranks that run one after the other."""

        def __init__(self, values):
            self.values, self.seen = values, []

        def __call__(self, tensor, operation, group):
            self.seen.append(tensor.clone())
            if self.values:
                other = self.values.pop(0)
                tensor.copy_(torch.maximum(tensor, other) if len(self.seen) == 1 else tensor + other)

    original = torch.distributed.all_reduce

    def run(half, first, values):
        ranks = Ranks(list(values))
        torch.distributed.all_reduce = ranks
        try:
            leaf = half.detach().clone().requires_grad_()
            losses = cross_entropy.run(CrossEntropyCall(leaf, labels.to(DEVICE), -100, 0.1, object(), first, 10))
            losses.sum().backward()
        finally:
            torch.distributed.all_reduce = original
        return losses.detach(), leaf.grad, ranks.seen

    for index, first in ((0, 0), (1, 5)):
        _, _, seen = run(halves[index], first, [])
        tops.append(seen[0])
    highest = torch.maximum(*tops)
    sums = [run(halves[index], first, [highest])[2][1] for index, first in ((0, 0), (1, 5))]
    for index, first in ((0, 0), (1, 5)):
        losses, gradient, _ = run(halves[index], first, [highest, sums[1 - index]])
        results.append(losses)
        gradients.append(gradient)
    for losses in results:
        check_cross_entropy(losses, torch.cat(gradients, -1), logits, labels, 0.1, torch.ones(6))


@pytest.mark.parametrize(
    ("dtype", "shape", "bias"), every_pair(DTYPES, [(1, 1), (3, 5, 33), (40, 1000), (2, 3000)], [True, False])
)
def test_layer_norm_and_rms_norm(dtype, shape, bias):
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, dtype=dtype) + 1 for _ in range(2))
    weights = [torch.randn(shape[-1:], dtype=dtype) for _ in range(2)]
    calls = [(layer_norm, layer_norm_reference, LayerNormCall, weights if bias else weights[:1])]
    if not bias:
        calls.append((rms_norm, rms_norm_reference, RmsNormCall, weights[:1]))
    for implementation, reference, kind, parameters in calls:
        results = []
        for each, wide in ((implementation, dtype), (reference, FP64)):
            leaves = [tensor.clone().to(DEVICE, wide).requires_grad_() for tensor in (x, *parameters)]
            result = each.run(kind(*leaves))
            result.backward(grad.to(DEVICE, wide))
            results.append([result.detach(), *[leaf.grad for leaf in leaves]])
        check_norm(results, kind, x, grad, parameters)


def check_norm(results, kind, x, grad, parameters):
    """Compare (result, gradients of x and of the parameters) of the kernel and of the reference in fp64."""
    given, g, w = numbers(x), np.abs(numbers(grad)), np.abs(numbers(parameters[0]))
    centre = given.mean(-1, keepdims=True) if kind is LayerNormCall else np.zeros_like(given[..., :1])
    variance = ((given - centre) ** 2).mean(-1, keepdims=True) + kind(x).eps
    spread = (np.abs(given) + np.abs(centre)) / np.sqrt(variance)
    # An error of the mean is an error of the variance, magnified by the ratio of mean to deviation.
    condition = 1 + np.abs(centre) / np.sqrt(variance)
    result = condition * spread * w + (np.abs(numbers(parameters[1])) if len(parameters) > 1 else 0.0)
    of_x = g * w + (g * w).mean(-1, keepdims=True) + spread * (g * w * spread).mean(-1, keepdims=True)
    rows, width = np.prod(x.shape[:-1]), x.shape[-1]
    terms = [result, condition * of_x / np.sqrt(variance)]
    terms += [each.reshape(-1, width).sum(0) for each in (g * condition * spread, g)[: len(parameters)]]
    computed, dtype = 2 * width + 4 * ELEMENTARY, x.dtype
    for name, found, right, size in zip(("result", "x", "weight", "bias"), *results, terms, strict=False):
        summed = rows if name in ("weight", "bias") else width
        assert_within(found, right, size, (computed + summed, FP32), (ROUNDINGS[dtype], dtype), name=name)


def test_layer_norm_takes_parameters_that_are_not_contiguous():
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, device=DEVICE) for shape in ((3, 8), (16,), (16,)))
    strided, contiguous = (
        layer_norm.run(LayerNormCall(x, each(weight), each(bias)))
        for each in (lambda one: one[::2], lambda one: one[::2].contiguous())
    )
    assert torch.equal(strided, contiguous)
