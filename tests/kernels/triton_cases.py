"""The Triton kernels against their references; test_triton.py runs this file in Triton's interpreter.

On a machine with a GPU: ``python -m pytest tests/kernels/triton_cases.py`` runs it compiled.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from ascend_adapt.kernels.cross_entropy import CrossEntropyCall
from ascend_adapt.kernels.cross_entropy import _reference as cross_entropy_reference
from ascend_adapt.kernels.cross_entropy import _triton as cross_entropy
from ascend_adapt.kernels.layer_norm import LayerNormCall
from ascend_adapt.kernels.layer_norm import _reference as layer_norm_reference
from ascend_adapt.kernels.layer_norm import _triton as layer_norm
from ascend_adapt.kernels.masked_softmax import EXACT, FINITE, FINITE_ZEROED, MaskedSoftmaxCall
from ascend_adapt.kernels.masked_softmax import _reference as softmax_reference
from ascend_adapt.kernels.masked_softmax import _triton as softmax
from ascend_adapt.kernels.rms_norm import RmsNormCall
from ascend_adapt.kernels.rms_norm import _reference as rms_norm_reference
from ascend_adapt.kernels.rms_norm import _triton as rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def forward_backward(implementation, call_type, tensor, grad, *more):
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


@pytest.mark.parametrize("fill", [EXACT, FINITE, FINITE_ZEROED])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape, mask, causal, fill):
    torch.manual_seed(0)
    hidden = mask_of(mask, shape)
    for dtype in TOLERANCE if mask == "full" else (torch.float32,):
        x, grad = torch.randn(shape, dtype=dtype) * 3, torch.randn(shape, dtype=dtype)
        x, grad = x.to(DEVICE), grad.to(DEVICE)
        rest = (None if hidden is None else hidden.to(DEVICE), torch.tensor(0.5), causal, fill)
        assert softmax.supports(MaskedSoftmaxCall(x, *rest)) == ""
        got, got_grad = forward_backward(softmax, MaskedSoftmaxCall, x, grad, *rest)
        expected, expected_grad = forward_backward(softmax_reference, MaskedSoftmaxCall, x, grad, *rest)
        close(got, expected, dtype)
        close(got_grad, expected_grad, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("fill", [EXACT, FINITE, FINITE_ZEROED])
def test_softmax_of_rows_wider_than_a_tile(fill, causal):
    torch.manual_seed(0)
    shape = (1, 1, 3, 20011)
    x, grad = torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    hidden = (torch.rand(shape) < 0.3).to(DEVICE)
    hidden[..., 0, :] = True
    rest = (hidden, 2.0, causal, fill)
    for got, expected in zip(
        forward_backward(softmax, MaskedSoftmaxCall, x, grad, *rest),
        forward_backward(softmax_reference, MaskedSoftmaxCall, x, grad, *rest),
        strict=True,
    ):
        close(got, expected, torch.float32)


@pytest.mark.parametrize("score", [-20000.0, 20000.0])
def test_softmax_masks_scores_of_any_size_exactly(score):
    x = torch.full((1, 3), score, device=DEVICE)
    hidden = torch.tensor([False, False, True], device=DEVICE)
    assert softmax.run(MaskedSoftmaxCall(x, hidden)).tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("score", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("columns", [64, 20011])
def test_softmax_of_large_scores_is_as_exact_as_of_small_ones(score, columns):
    """What counts are the differences of scores, which are exact here."""
    torch.manual_seed(0)
    x = (torch.randint(0, 8, (3, columns)) + score).to(DEVICE)
    torch.testing.assert_close(softmax.run(MaskedSoftmaxCall(x)).double(), x.double().softmax(-1), atol=0, rtol=1e-5)


def test_softmax_of_rows_that_a_float_mask_hides_whole_is_that_of_its_definition():
    """transformers' float masks hold the smallest number of their dtype; minus infinity would give zeros."""
    x = torch.full((2, 8), torch.finfo(torch.float32).min, device=DEVICE)
    close(softmax.run(MaskedSoftmaxCall(x)), softmax_reference.run(MaskedSoftmaxCall(x)), torch.float32)
    assert softmax.run(MaskedSoftmaxCall(x)).sum() == 2


def test_softmax_takes_scores_that_are_not_contiguous():
    x = torch.randn(2, 5, 3, device=DEVICE).transpose(1, 2)
    close(softmax.run(MaskedSoftmaxCall(x)), x.softmax(-1), torch.float32)


def test_softmax_says_what_it_does_not_take():
    assert "float64" in softmax.supports(MaskedSoftmaxCall(torch.zeros(2, 2, dtype=torch.float64)))
    assert "four axes" in softmax.supports(MaskedSoftmaxCall(torch.zeros(1, 1, 1, 1, 1)))
    assert "no scores" in softmax.supports(MaskedSoftmaxCall(torch.zeros(0, 2)))
    scale = torch.tensor(2.0, requires_grad=True)
    assert "gradient" in softmax.supports(MaskedSoftmaxCall(torch.zeros(2, 2), scale=scale))


@pytest.mark.parametrize(
    ("columns", "smoothing", "padded"), list(itertools.product([1, 7, 1000, 20011], [0.0, 0.1], [False, True]))
)
def test_cross_entropy(columns, smoothing, padded):
    torch.manual_seed(0)
    labels = torch.randint(0, columns, (9,))
    labels[3] = -100
    grad = torch.randn(9)
    for dtype in TOLERANCE if columns < 1000 else (torch.float32,):
        wide = torch.randn(9, columns + 5, dtype=dtype) * 4
        logits = wide[:, :columns] if padded else wide[:, :columns].contiguous()
        call = CrossEntropyCall(logits.to(DEVICE), labels.to(DEVICE), -100, smoothing, None, 0, columns)
        results = []
        for implementation in (cross_entropy, cross_entropy_reference):
            leaf = call.logits.detach().requires_grad_()
            losses = implementation.run(CrossEntropyCall(leaf, *list(vars(call).values())[1:]))
            losses.backward(grad.to(DEVICE))
            results.append((losses.detach(), leaf.grad))
        (got, got_grad), (expected, expected_grad) = results
        close(got, expected, torch.float32)
        close(got_grad, expected_grad, dtype)


@pytest.mark.parametrize("strides", [(0, 1), (3, 1), (0, 0)])
def test_cross_entropy_of_rows_that_share_memory_gives_each_its_gradient(strides):
    torch.manual_seed(0)
    rows = torch.randn(40, device=DEVICE).as_strided((5, 7), strides)
    labels, grads = torch.arange(5, device=DEVICE), []
    for implementation in (cross_entropy, cross_entropy_reference):
        leaf = rows.detach().requires_grad_()
        implementation.run(CrossEntropyCall(leaf, labels, vocabulary=7)).sum().backward()
        grads.append(leaf.grad)
    close(*grads, torch.float32)


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
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
    halves = logits.to(DEVICE).split(5, -1)
    tops, results, gradients = [], [], []

    class Ranks:
        """Stands for torch.distributed.all_reduce over two ranks that run one after the other."""

        def __init__(self, told):
            self.told, self.seen = told, []

        def __call__(self, tensor, operation, group):
            self.seen.append(tensor.clone())
            if self.told:
                other = self.told.pop(0)
                tensor.copy_(torch.maximum(tensor, other) if len(self.seen) == 1 else tensor + other)

    original = torch.distributed.all_reduce

    def run(half, first, told):
        ranks = Ranks(list(told))
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
    whole = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(whole, labels, reduction="sum", label_smoothing=0.1).backward()
    for losses in results:
        close(losses.cpu(), expected, torch.float32)
    close(torch.cat(gradients, -1).cpu(), whole.grad, torch.float32)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 33), (40, 1000), (2, 3000)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layer_norm_and_rms_norm(dtype, shape, bias):
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, dtype=dtype) + 1 for _ in range(2))
    weights = [torch.randn(shape[-1:], dtype=dtype) for _ in range(2)]
    calls = [(layer_norm, layer_norm_reference, LayerNormCall, weights if bias else weights[:1])]
    if not bias:
        calls.append((rms_norm, rms_norm_reference, RmsNormCall, weights[:1]))
    for implementation, reference, kind, parameters in calls:
        results = []
        for each in (implementation, reference):
            leaves = [tensor.clone().to(DEVICE).requires_grad_() for tensor in (x, *parameters)]
            result = each.run(kind(*leaves))
            result.backward(grad.to(DEVICE))
            results.append([result.detach(), *[leaf.grad for leaf in leaves]])
        centre = x.float().mean(-1, keepdim=True) if kind is LayerNormCall else 0.0
        factor = ((x.float() - centre).square().mean(-1) + 1e-5).rsqrt().max()
        # Terms of this size cancel in the gradient of x: of a row with one element all of them.
        terms = [1.0, float((grad * parameters[0]).float().abs().max() * factor), 1.0, 1.0]
        for got, expected, term in zip(*results, terms, strict=False):
            scale = expected.float().abs().max().clamp(min=term)
            close(got.float() / scale, expected.float() / scale, dtype)


def test_layer_norm_takes_parameters_that_are_not_contiguous():
    x, weight, bias = (torch.randn(shape, device=DEVICE) for shape in ((3, 8), (16,), (16,)))
    found = layer_norm.run(LayerNormCall(x, weight[::2], bias[::2]))
    close(found, layer_norm_reference.run(LayerNormCall(x, weight[::2], bias[::2])), torch.float32)
