"""swiglu, rotary, linear_cross_entropy and decode attention in Triton compared with the float64 oracle.

test_triton.py runs this file.

On a machine with a GPU: ``PYTHONPATH=tests python -m pytest tests/kernels/triton_oracle_cases.py`` runs it compiled.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from covering import every_pair
from error_bounds import ELEMENTARY, Step, assert_within, of_exponent
from kernels import oracle

from ascend_adapt.kernels.operators.attention import AttentionCall
from ascend_adapt.kernels.operators.attention import _triton as decode
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall, _chunks
from ascend_adapt.kernels.operators.linear_cross_entropy import _triton as linear_cross_entropy
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.operators.rotary import _triton as rotary
from ascend_adapt.kernels.operators.swiglu import SwigluCall
from ascend_adapt.kernels.operators.swiglu import _triton as swiglu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP32 = torch.float32
DTYPES = (FP32, torch.float16, torch.bfloat16)
# Triton's interpreter truncates bf16 where a GPU rounds: that may be a whole ulp, two unit roundoffs.
STORED = {dtype: (2 if dtype == torch.bfloat16 and DEVICE == "cpu" else 1, dtype) for dtype in DTYPES}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def exact(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def check_swiglu(x: torch.Tensor, grad: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    x.requires_grad_()
    call = SwigluCall(x, bias if bias is None else bias.requires_grad_())
    assert swiglu.supports(call) == ""
    result = swiglu.run(call)
    assert result.dtype == x.dtype
    leaves = [x] if bias is None else [x, bias]
    gradients = torch.autograd.grad(result, leaves, grad)
    given = exact(x), exact(grad), None if bias is None else exact(bias)
    right, dx = oracle.swiglu(*given)
    terms, dx_terms = oracle.swiglu_terms(*given)
    computed = (4 * ELEMENTARY, FP32)
    underflow = float(x.detach().abs().max()) ** 2
    assert_within(result, right, terms, computed, STORED[x.dtype], underflow=underflow)
    assert_within(gradients[0], dx, dx_terms, computed, STORED[x.dtype], underflow=underflow)
    if bias is not None:
        assert gradients[1].dtype == bias.dtype
        of_bias, bias_terms = (each.reshape(-1, each.shape[-1]) for each in (dx, dx_terms))
        steps = computed, (len(of_bias), FP32), (1, bias.dtype)
        assert_within(gradients[1], of_bias.sum(0), bias_terms.sum(0), *steps)


@pytest.mark.parametrize(
    ("dtype", "shape", "bias"),
    every_pair(DTYPES, [(2,), (1, 2), (3, 5, 66), (70, 34), (2, 16390)], ["none", "alike", "fp32"]),
)
def test_swiglu(dtype, shape, bias):
    torch.manual_seed(0)
    x, grad = random(*shape, dtype=dtype) * 2, random(*shape[:-1], shape[-1] // 2, dtype=dtype)
    added = None if bias == "none" else random(shape[-1], dtype=torch.float32 if bias == "fp32" else dtype)
    check_swiglu(x, grad, added)


def test_swiglu_of_tensors_that_are_not_contiguous():
    torch.manual_seed(0)
    turned, every_second = random(6, 3, 10).transpose(0, 1), random(4, 3, 20)[..., ::2]
    for x in (turned, every_second, random(1, 1, 10).expand(2, 3, 10).detach()):
        grad = random(1, 1, 1).expand(*x.shape[:-1], 5)
        check_swiglu(x, grad, random(20)[::2])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_swiglu_of_gates_far_from_zero():
    x = torch.tensor([[-3e4, -90.0, 90.0, 3e4, 2.0, 2.0, 2.0, 2.0]], device=DEVICE)
    check_swiglu(x, torch.ones(1, 4, device=DEVICE))


def test_swiglu_is_deterministic():
    x, bias = random(300, 34).requires_grad_(), random(34).requires_grad_()
    runs = [torch.autograd.grad(swiglu.run(SwigluCall(x, bias)).sum(), (x, bias)) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_swiglu_says_what_it_does_not_take():
    assert swiglu.supports(SwigluCall(torch.empty(0, 4))) == "x is empty"
    assert "x is float64" in swiglu.supports(SwigluCall(torch.empty(2, 4, dtype=torch.float64)))
    assert "bias is float64" in swiglu.supports(SwigluCall(torch.empty(2, 4), torch.empty(4, dtype=torch.float64)))


def check_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, grad: torch.Tensor, interleaved: bool) -> None:
    call = RotaryCall(x.requires_grad_(), cos, sin, interleaved)
    call.check()
    assert rotary.supports(call) == ""
    result = rotary.run(call)
    assert result.dtype == x.dtype
    (gradient,) = torch.autograd.grad(result, x, grad)
    assert (result.stride(), gradient.stride()) == (torch.empty_like(x).stride(), torch.empty_like(grad).stride())
    given = [exact(each) for each in (x, cos, sin, grad)]
    right, dx = oracle.rotary(*given, interleaved=interleaved)
    terms = oracle.rotary_terms(*given, interleaved=interleaved)
    for found, true, size in zip((result, gradient), (right, dx), terms, strict=True):
        assert_within(found, true, size, (2, FP32), STORED[x.dtype])
    rest = cos.shape[-1]
    assert torch.equal(result[..., rest:], x[..., rest:])
    assert torch.equal(gradient[..., rest:], grad[..., rest:])


# The angles of [B, N, S, D], [S, B, N, D] and [B, S, N, D]; of the whole axis, a part of it, and an odd axis.
LAYOUTS = [
    ((2, 4, 20, 64), (1, 1, 20, 64)),
    ((20, 2, 4, 64), (20, 1, 1, 16)),
    ((2, 20, 4, 24), (2, 20, 1, 22)),
    ((2, 3, 5, 33), (2, 3, 5, 6)),
    ((1, 40, 3, 2), (40, 1, 2)),
    ((3, 7, 10), (7, 10)),
    ((70, 9), (8,)),
    ((6,), (2,)),
    ((2, 1, 3, 2048), (1, 1, 3, 2048)),
]


@pytest.mark.parametrize(("dtype", "layout", "interleaved"), every_pair(DTYPES, LAYOUTS, [False, True]))
def test_rotary(dtype, layout, interleaved):
    torch.manual_seed(0)
    shape, angles = layout
    for of_angles in {dtype, torch.float32}:
        # Cosine and sine of a pair's two elements may differ.
        cos, sin = (random(*angles, dtype=of_angles) for _ in range(2))
        x, grad = (random(*shape, dtype=dtype) for _ in range(2))
        check_rotary(x, cos, sin, grad, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_of_tensors_that_are_not_contiguous(interleaved):
    torch.manual_seed(0)
    turned = random(2, 5, 3, 8).transpose(1, 2)
    of_fused, every_second = random(2, 3, 5, 24)[..., 8:16], random(2, 3, 5, 16)[..., ::2]
    angles = [random(5, 8), random(8, 5).t(), random(5, 16)[:, ::2], random(1, 8).expand(5, 8), random(2, 1, 5, 8)]
    grads = [random(2, 5, 3, 8).transpose(1, 2), random(1).expand(2, 3, 5, 8), random(2, 3, 5, 8)]
    for x, grad in itertools.product((turned, of_fused, every_second), grads):
        for cos, sin in itertools.product(angles[:4], repeat=2):
            check_rotary(x, cos, sin, grad, interleaved)
        check_rotary(x, angles[4], angles[4].flip(-1), grad, interleaved)


@pytest.mark.parametrize("rotated", [8, 6])
def test_rotary_of_queries_and_keys_in_one_kernel(rotated):
    torch.manual_seed(0)
    cos, sin = (random(5, rotated) for _ in range(2))
    for key_heads, positions in ((2, 5), (4, 5), (4, 1)):  # the last has not the queries' positions
        x, key = random(2, 5, 4, 8).transpose(1, 2), random(2, positions, key_heads, 8).transpose(1, 2)
        given = [cos, sin] if positions == 5 else [cos[:1], sin[:1]]
        leaves = [each.clone().requires_grad_() for each in (x, key)]
        together = rotary.run(RotaryCall(leaves[0], *given, False, leaves[1]))
        alone = [rotary.run(RotaryCall(each, *given)) for each in leaves]
        grads = [torch.randn_like(each) for each in together]
        assert all(map(torch.equal, together, alone))
        assert all(
            map(torch.equal, torch.autograd.grad(together, leaves, grads), torch.autograd.grad(alone, leaves, grads))
        )


def test_rotary_says_what_it_does_not_take():
    x, angle = torch.empty(2, 3, 4), torch.empty(3, 4)
    assert "cos and sin" in rotary.supports(RotaryCall(x, angle, torch.empty(3, 4, requires_grad=True)))
    assert "sin is float64" in rotary.supports(RotaryCall(x, angle, angle.double()))
    assert "four axes" in rotary.supports(RotaryCall(x[None, None], angle, angle))
    assert "at most 4096" in rotary.supports(RotaryCall(torch.empty(1, 5000), angle[:1], angle[:1]))
    assert rotary.supports(RotaryCall(x[:0], angle, angle)) == "x is empty"


@pytest.mark.parametrize(
    ("dtype", "bias", "size", "reduction"),
    every_pair(DTYPES, [True, False], [(1, 0.0), (7, 0.1), (1000, 0.0), (9001, 0.1)], ["mean", "sum", "none"]),
)
def test_linear_cross_entropy(dtype, bias, size, reduction, monkeypatch):
    torch.manual_seed(0)
    columns, smoothing = size
    # Two tokens at a time, and one that is left; few columns all at once.
    monkeypatch.setattr(_chunks, "_CHUNK_BYTES", (2 if columns > 7 else 9) * columns * (4 if bias else dtype.itemsize))
    labels = torch.randint(0, columns, (5,))
    labels[3] = -100
    # Halves of small integers: their products are exact in every dtype, in any order of summation.
    halves = [torch.randint(-2, 3, (size, 6)).to(DEVICE, dtype) / 2 for size in (5, columns)]
    leaves = [*halves, random(columns, dtype=dtype)][: 2 + bias]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    hidden, weight, added = (*leaves, None)[:3]
    call = LinearCrossEntropyCall(
        hidden, weight, labels.to(DEVICE), added, -100, smoothing, reduction, vocabulary=columns
    )
    assert linear_cross_entropy.supports(call) == ""
    losses = linear_cross_entropy.run(call)
    grad = random(5) if reduction == "none" else torch.tensor(0.7, device=DEVICE)
    gradients = torch.autograd.grad(losses, leaves, grad)
    check_linear_cross_entropy(losses, gradients, leaves, labels.tolist(), smoothing, reduction, exact(grad))


def check_linear_cross_entropy(losses, gradients, leaves, labels, smoothing, reduction, grad):
    h, w, bias = (*(exact(leaf) for leaf in leaves), 0.0)[:3]
    logits, share = h @ w.T + bias, 1 / 4 if reduction == "mean" else 1.0
    tokens, of_logits = oracle.cross_entropy(logits, labels, label_smoothing=smoothing)
    token_terms, logit_terms = oracle.cross_entropy_terms(logits, labels, label_smoothing=smoothing)
    of_logits, logit_terms = (each * (share * grad[..., None]) for each in (of_logits, logit_terms))
    logit_terms = np.abs(logit_terms)
    if reduction != "none":
        tokens, token_terms = tokens.sum() * share, token_terms.sum() * share
    # The sum of the exponentials, and what is made of it; then what each result sums.
    computed: Step = (len(w) + of_exponent(logits) + 2 * ELEMENTARY, FP32)
    assert losses.dtype == FP32
    assert_within(losses, tokens, token_terms, computed, (len(labels), FP32))
    dtype = leaves[0].dtype
    sums = (
        ("hidden", of_logits @ w, logit_terms @ np.abs(w), len(w)),
        ("weight", of_logits.T @ h, logit_terms.T @ np.abs(h), len(labels)),
        ("bias", of_logits.sum(0), logit_terms.sum(0), len(labels)),
    )
    for found, leaf, (name, true, terms, length) in zip(gradients, leaves, sums, strict=False):
        assert found.dtype == leaf.dtype
        # Rounded to the inputs' dtype: the gradient of the logits, its product in a chunk, and the final multiple.
        assert_within(found, true, terms, computed, (length, FP32), STORED[dtype], (3, dtype), name=name)


def test_linear_cross_entropy_of_a_label_outside_the_vocabulary_is_nan():
    labels = torch.tensor([0, 9, -1], device=DEVICE)
    call = LinearCrossEntropyCall(random(3, 2), random(4, 2), labels, reduction="none", vocabulary=4)
    assert linear_cross_entropy.run(call).isnan().tolist() == [False, True, True]


def test_linear_cross_entropy_takes_labels_that_are_not_contiguous():
    labels = torch.tensor([0, 3, 1, 3, 2, 3], device=DEVICE)[::2]
    hidden, weight = random(3, 2), random(4, 2)
    found, right = (
        linear_cross_entropy.run(LinearCrossEntropyCall(hidden, weight, each, vocabulary=4))
        for each in (labels, labels.clone())
    )
    assert torch.equal(found, right)


def test_linear_cross_entropy_computes_no_gradient_that_is_not_wanted():
    hidden, weight = random(3, 2), random(4, 2).requires_grad_()
    labels = torch.tensor([0, 3, 1], device=DEVICE)
    linear_cross_entropy.run(LinearCrossEntropyCall(hidden, weight, labels, vocabulary=4)).backward()
    assert hidden.grad is None
    assert weight.grad is not None


def test_linear_cross_entropy_says_what_it_does_not_take():
    labels = torch.zeros(2, dtype=torch.int64)
    hidden, weight = torch.empty(2, 3), torch.empty(4, 3)
    no_tokens = LinearCrossEntropyCall(hidden[:0], weight, labels[:0])
    assert linear_cross_entropy.supports(no_tokens) == "there are no logits"
    wide = LinearCrossEntropyCall(hidden.double(), weight.double(), labels)
    assert "hidden is float64" in linear_cross_entropy.supports(wide)


# Triton 3.6's interpreter multiplies the bits of bf16 matrices as integers.
DECODE_DTYPES = DTYPES if DEVICE == "cuda" else (FP32, torch.float16)
DECODE_MASKS = ["no", "rows", "keys", "all"]
DECODE_CASES = {
    # name: (B, N, Nk, Q, K, D)
    "one head": (1, 1, 1, 1, 1, 64),
    "shared heads": (2, 8, 2, 1, 70, 80),
    "folded heads": (2, 2, 2, 7, 130, 16),
    "many queries": (1, 4, 2, 8, 65, 96),
}


@pytest.mark.parametrize(("dtype", "case", "masked"), every_pair(DECODE_DTYPES, list(DECODE_CASES), DECODE_MASKS))
def test_attention_of_a_generated_token(dtype, case, masked):
    batch, heads, key_heads, queries, keys, width = DECODE_CASES[case]
    q = random(batch, heads, queries, width, dtype=dtype)
    k, v = (random(batch, keys, key_heads, width, dtype=dtype).transpose(1, 2) for _ in range(2))
    masked_out = {
        "no": None,
        "rows": torch.rand(batch, 1, 1, keys, device=DEVICE) < 0.4,
        "keys": torch.rand(keys, device=DEVICE) < 0.4,
        "all": torch.ones(batch, 1, 1, 1, dtype=torch.bool, device=DEVICE),
    }[masked]
    call = AttentionCall(q, k, v, masked_out)
    with torch.no_grad():
        assert decode.supports(call) == ""
        found = decode.run(call)
    hidden = None if masked_out is None else masked_out.cpu().numpy()
    sizes: dict[str, np.ndarray] = {}
    right, *_ = oracle.attention(
        *map(exact, (q, k, v, q)), scale=call.factor, sizes=sizes, **({} if hidden is None else {"masked_out": hidden})
    )
    scores = (width + ELEMENTARY, FP32, 1 + 2 * float(sizes["scores"]))
    # The weights are rounded to the dtype of v before they are summed.
    assert_within(found, right, sizes["output"], scores, (width + 2 * keys, FP32), STORED[dtype], STORED[dtype])


def test_what_attention_of_a_generated_token_does_not_take():
    q = torch.zeros(1, 2, 3, 16, requires_grad=True)
    k = torch.zeros(1, 2, 5, 16)
    for call, why in (
        (AttentionCall(q, k, k), "no gradients"),
        (AttentionCall(q.detach(), k, k, causal=True), "the same keys"),
        (AttentionCall(q.detach(), k, k, torch.ones(1, 1, 3, 5, dtype=torch.bool)), "one mask"),
        (AttentionCall(q.detach(), k, k, window=2), "no bias, window"),
        (AttentionCall(torch.zeros(1, 2, 17, 16), k, k), "at most 16 queries"),
    ):
        assert why in decode.supports(call)
