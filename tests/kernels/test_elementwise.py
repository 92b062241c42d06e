"""Norms, rotary, swiglu and gelu compared with float64 formulas in numpy, gradients with finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from error_bounds import COMPUTED_IN, ELEMENTARY, assert_within
from kernels import oracle

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import gelu, layer_norm, requests, rms_norm, rotary, swiglu

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 5, 8))
WEIGHT, BIAS = RNG.standard_normal(8), RNG.standard_normal(8)
ANGLES = RNG.standard_normal((1, 1, 5, 4))
ERF = np.vectorize(math.erf)


# Each returns the result, and the magnitudes of its sums.
def right_rms_norm(x, weight):
    result = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * weight
    return result, np.abs(result)


def right_layer_norm(x, weight, bias):
    centre = x.mean(-1, keepdims=True)
    root = np.sqrt(((x - centre) ** 2).mean(-1, keepdims=True) + 1e-3)
    terms = (1 + np.abs(centre) / root) * (np.abs(x) + np.abs(x).mean(-1, keepdims=True)) / root
    return (x - centre) / root * weight + bias, terms * np.abs(weight) + np.abs(bias)


def right_rotary(x, cos, sin, interleaved):
    given = x, cos, sin, np.zeros_like(x)
    return tuple(of(*given, interleaved=interleaved)[0] for of in (oracle.rotary, oracle.rotary_terms))


def right_gelu(x, bias, approximate):
    total = x + bias
    # The error of x + bias is relative to the larger one, and the slope of GELU is at most 1.13.
    terms = 2 * (np.abs(x) + np.abs(bias))
    if approximate == "none":
        return total * (1 + ERF(total / math.sqrt(2))) / 2, terms
    return total * (1 + np.tanh(math.sqrt(2 / math.pi) * (total + 0.044715 * total**3))) / 2, terms


def right_swiglu(x, bias):
    given = x, np.zeros_like(np.split(x, 2, -1)[0]), bias
    return tuple(of(*given)[0] for of in (oracle.swiglu, oracle.swiglu_terms))


def doubled(angles, interleaved):
    return np.repeat(angles, 2, -1) if interleaved else np.concatenate([angles, angles], -1)


CASES = {
    "rms_norm": (lambda x, w: rms_norm(x, w, eps=1e-3), right_rms_norm, (X, WEIGHT)),
    "rms_norm, no weight": (lambda x: rms_norm(x, eps=1e-3), lambda x: right_rms_norm(x, 1), (X,)),
    "layer_norm": (lambda x, w, b: layer_norm(x, w, b, eps=1e-3), right_layer_norm, (X, WEIGHT, BIAS)),
    "layer_norm, no bias": (
        lambda x, w: layer_norm(x, w, eps=1e-3),
        lambda x, w: right_layer_norm(x, w, 0),
        (X, WEIGHT),
    ),
    "swiglu": (swiglu, lambda x: right_swiglu(x, np.zeros(8)), (X,)),
    "swiglu, bias": (swiglu, right_swiglu, (X, BIAS)),
    **{
        f"gelu, {kind}": (
            lambda x, kind=kind: gelu(x, approximate=kind),
            lambda x, kind=kind: right_gelu(x, 0.0, kind),
            (X,),
        )
        for kind in ("none", "tanh")
    },
    "gelu, bias": (lambda x, b: gelu(x, b, approximate="tanh"), lambda x, b: right_gelu(x, b, "tanh"), (X, BIAS)),
    **{
        f"rotary, {'interleaved' if kind else 'halves'}": (
            lambda x, c, s, kind=kind: rotary(x, c, s, interleaved=kind),
            lambda x, c, s, kind=kind: right_rotary(x, c, s, kind),
            (X, doubled(np.cos(ANGLES), kind), doubled(np.sin(ANGLES), kind)),
        )
        for kind in (False, True)
    },
}


@pytest.mark.parametrize("backend", ["reference", "automatic"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", list(COMPUTED_IN))
def test_it_satisfies_the_contract(case, dtype, backend):
    run, right, arguments = CASES[case]
    requests.state({case.partition(",")[0]: backend} if backend == "reference" else {})
    tensors = [torch.from_numpy(each).to(dtype) for each in arguments]
    result = run(*tensors)
    true, terms = right(*(each.double().numpy() for each in tensors))
    assert result.dtype == dtype
    assert_within(result, true, terms, (2 * X.shape[-1] + 4 * ELEMENTARY, COMPUTED_IN[dtype]), (1, dtype))


@pytest.mark.parametrize("backend", ["reference", "automatic"])
@pytest.mark.parametrize("case", CASES)
def test_its_gradients_are_those_of_finite_differences(case, backend):
    run, _, arguments = CASES[case]
    requests.state({case.partition(",")[0]: backend} if backend == "reference" else {})
    tensors = [torch.from_numpy(each[:1, :1] if each.ndim == 4 else each).clone() for each in arguments]
    assert torch.autograd.gradcheck(run, [each.requires_grad_() for each in tensors])


def test_the_unrotated_part_is_unchanged():
    x = torch.from_numpy(np.concatenate([X, X], -1))
    angles = [torch.from_numpy(doubled(each(ANGLES), False)) for each in (np.cos, np.sin)]
    found = rotary(x, *angles)
    right, terms = right_rotary(X, *(each.numpy() for each in angles), interleaved=False)
    assert_within(found[..., :8], right, terms, (2, torch.float64))
    assert torch.equal(found[..., 8:], x[..., 8:])


def test_rotary_of_a_key_too():
    x, key = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    angles = torch.randn(3, 6), torch.randn(3, 6)
    together = rotary(x, *angles, key=key)
    assert all(map(torch.equal, together, (rotary(x, *angles), rotary(key, *angles))))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rms_norm(torch.randn(2, 3), torch.randn(2)), "weight: has shape [2], x [2, 3] requires [3]"),
        (lambda: layer_norm(torch.randn(2, 3), None, torch.randn(3)), "bias: given without a weight"),
        (lambda: swiglu(torch.randn(2, 3)), "x: has shape [2, 3], expected an even last axis"),
        (lambda: gelu(torch.randn(2, 3), approximate="erf"), "approximate='erf': expected none or tanh"),
        (lambda: gelu(torch.ones(2, 3, dtype=torch.int64)), "x: is torch.int64 [2, 3], expected a float tensor"),
        (lambda: rotary(torch.randn(2, 4), *[torch.randn(6)] * 2), "expected an even last axis of at most 4"),
        (
            lambda: rotary(torch.randn(2, 5, 4), *[torch.randn(3, 4)] * 2),
            "cos: has shape [3, 4], expected a shape that broadcasts to [2, 5, 4]",
        ),
        (lambda: rms_norm(torch.randn(2, 3), [1.0] * 3), "weight: is list, expected a float tensor [3]"),
        (lambda: layer_norm(torch.randn(2, 3), torch.ones(3, dtype=torch.int32)), "weight: is torch.int32 [3]"),
        (lambda: rms_norm(torch.tensor(1.0)), "x: has shape [], expected [..., D]"),
        (lambda: layer_norm(torch.randn(2, 3), eps=None), "eps: is None, expected a number"),
        (lambda: gelu(torch.tensor(1.0)), "x: has shape [], expected [..., H]"),
        (lambda: gelu(torch.randn(2, 3), np.ones(3)), "bias: is ndarray, expected a float tensor [3]"),
        (lambda: swiglu(np.ones((2, 4), dtype=np.float32)), "x: is ndarray, expected a float tensor [..., 2 H]"),
        (lambda: rotary(torch.randn(2, 4), torch.randn(4), torch.randn(2)), "sin: has shape [2], cos [4] requires [4]"),
        (
            lambda: rotary(torch.randn(2, 4), *[torch.randn(4)] * 2, key=torch.randn(2, 6)),
            "key: is [2, 6] torch.float32, x [2, 4] torch.float32, expected the same dtype",
        ),
        (
            lambda: rotary(torch.randn(3, 2, 4), *[torch.randn(2, 4)] * 2, key=torch.randn(3, 5, 4)),
            "cos: has shape [2, 4], expected a shape that broadcasts to [3, 5, 4]",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, words):
    with pytest.raises(KernelArgumentError) as caught:
        call()
    assert words in str(caught.value)
