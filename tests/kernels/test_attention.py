"""attention compared with a float64 oracle, on every backend of the CPU."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
import torch
from error_bounds import COMPUTED_IN, ELEMENTARY, assert_within
from kernels import oracle

from ascend_adapt.errors import BackendUnavailable, KernelArgumentError
from ascend_adapt.kernels import attention, dispatch, masked_out_from_keep, requests
from ascend_adapt.kernels.operators.attention import KERNEL

BACKENDS = ("reference", "sdpa")


def mask_of(seed, *shape):
    mask = np.random.default_rng(seed).random(shape) < 0.4
    mask[..., :2, :] = True  # fully masked rows
    return mask


def bias_of(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def outside(prefix, keys):
    """What lengths of a prefix mask, [B, 1, K, K]."""
    return np.array([[[[j > i and j >= length for j in range(keys)] for i in range(keys)]] for length in prefix])


# name -> (B, N, Nk, Q, K, D, rules)
CASES = {
    "full": (2, 3, 3, 17, 17, 64, {}),
    "full, one query": (2, 3, 3, 1, 17, 64, {}),
    "full, Q != K": (1, 2, 2, 7, 19, 96, {}),
    "causal": (2, 3, 3, 17, 17, 64, {"causal": True}),
    "causal, 1": (1, 2, 2, 1, 1, 64, {"causal": True}),
    "causal, one query": (1, 2, 2, 1, 3, 64, {"causal": True}),
    "causal, 127": (1, 1, 1, 127, 127, 80, {"causal": True}),
    "causal, 129, shared heads": (1, 4, 2, 129, 129, 64, {"causal": True}),
    "causal, Q < K": (2, 2, 2, 13, 17, 64, {"causal": True}),
    "causal, Q << K": (2, 2, 1, 5, 23, 64, {"causal": True}),
    "causal, Q > K": (2, 4, 2, 23, 9, 64, {"causal": True}),
    "causal, D 128": (1, 2, 2, 11, 11, 128, {"causal": True}),
    "causal, D 256": (1, 2, 2, 11, 11, 256, {"causal": True}),
    "mask": (2, 2, 2, 13, 19, 64, {"masked_out": mask_of(0, 2, 1, 13, 19)}),
    "mask of every head": (2, 2, 1, 13, 13, 64, {"masked_out": mask_of(1, 2, 2, 13, 13)}),
    "mask [Q, K]": (2, 2, 2, 13, 13, 64, {"masked_out": mask_of(2, 13, 13)}),
    "mask of keys": (2, 2, 2, 13, 13, 64, {"masked_out": np.arange(26).reshape(2, 1, 1, 13) % 4 == 1}),
    "mask of all keys of one": (2, 2, 2, 5, 13, 64, {"masked_out": np.array([[[[True]]], [[[False]]]])}),
    "mask, causal": (2, 2, 2, 13, 13, 64, {"masked_out": mask_of(3, 2, 1, 13, 13), "causal": True}),
    "mask, causal, Q > K": (2, 2, 2, 17, 13, 64, {"masked_out": mask_of(3, 2, 1, 17, 13), "causal": True}),
    "mask of keys, causal, shared heads": (
        *(2, 4, 2, 13, 13, 80),
        {"masked_out": np.arange(26).reshape(2, 1, 1, 13) < 3, "causal": True},
    ),
    "bias": (2, 2, 2, 13, 19, 64, {"bias": bias_of(4, 1, 2, 13, 19)}),
    "bias of keys": (2, 2, 2, 13, 19, 64, {"bias": bias_of(5, 2, 1, 1, 19)}),
    "bias of queries": (2, 2, 2, 13, 19, 64, {"bias": bias_of(5, 2, 1, 13, 1)}),
    "bias, endless": (2, 2, 2, 13, 13, 64, {"bias": np.where(mask_of(6, 2, 1, 13, 13), -np.inf, 0.5)}),
    "bias, mask, causal": (
        *(2, 2, 2, 13, 13, 64),
        {"bias": bias_of(7, 2, 13, 13), "masked_out": mask_of(8, 2, 1, 13, 13), "causal": True},
    ),
    "window": (2, 2, 1, 19, 19, 64, {"window": 5}),
    "window of one": (2, 2, 2, 19, 19, 64, {"window": 1}),
    "window, wide": (1, 2, 2, 19, 19, 64, {"window": 100}),
    "window, many blocks": (1, 1, 1, 300, 300, 64, {"window": 130}),
    "window, Q < K": (2, 2, 2, 7, 19, 64, {"window": 5}),
    "window, Q > K": (2, 2, 2, 19, 7, 64, {"window": 5}),
    "window, mask": (2, 2, 2, 19, 19, 64, {"window": 5, "masked_out": mask_of(9, 1, 1, 19, 19)}),
    "window, bias": (2, 2, 2, 19, 19, 64, {"window": 5, "bias": bias_of(10, 1, 2, 1, 19)}),
    "prefix": (2, 2, 1, 19, 19, 64, {"prefix": [7, 0]}),
    "prefix of one and of all": (2, 2, 2, 19, 19, 96, {"prefix": [1, 19]}),
    "packed": (1, 2, 1, 19, 19, 64, {"cu_seqlens": [0, 4, 4, 11, 19]}),
    "packed, causal": (1, 2, 2, 19, 19, 64, {"cu_seqlens": [0, 1, 11, 19], "causal": True}),
    "packed, window": (1, 2, 2, 19, 19, 64, {"cu_seqlens": [0, 11, 19], "window": 3}),
    "packed, mask": (
        *(1, 2, 2, 19, 19, 64),
        {"cu_seqlens": [0, 11, 19], "causal": True, "masked_out": mask_of(11, 1, 2, 19, 19)},
    ),
}


def check(case, dtype, run, device="cpu"):
    """Compare ``run(q, k, v, **rules)`` with the oracle, forward and backward."""
    batch, heads, key_heads, queries, keys, width, rules = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes = (batch, heads, queries, width), (batch, key_heads, keys, width), (batch, key_heads, keys, width)
    # Values that the dtype represents exactly, so that only the computation can differ.
    q, k, v, grad = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for shape in (*shapes, shapes[0]))
    scale, exact, given = 0.3, {}, {}
    for name, value in rules.items():
        exact[name], given[name] = value, value
        if name == "bias":
            rounded = torch.from_numpy(value).to(dtype)
            given[name], exact[name] = rounded.to(device), rounded.double().numpy()
        elif name == "masked_out":
            given[name] = torch.from_numpy(value).to(device)
        elif name == "prefix":
            given[name], exact["masked_out"] = torch.tensor(value, device=device), outside(exact.pop(name), keys)
        elif name == "cu_seqlens":
            given[name], exact["borders"] = (
                torch.tensor(value, dtype=torch.int32, device=device),
                tuple(exact.pop(name)),
            )
    inputs = [each.clone().to(device).requires_grad_() for each in (q, k, v)]
    result = run(*inputs, scale=scale, **given)
    result.backward(grad.to(device))
    sizes: dict[str, np.ndarray] = {}
    right = oracle.attention(*(each.double().numpy() for each in (q, k, v, grad)), scale=scale, sizes=sizes, **exact)
    # The scores are sums, whose error the exponentials magnify; sums over keys, or over queries, follow.
    scores = (width + ELEMENTARY, COMPUTED_IN[dtype], 1 + 2 * float(sizes["scores"]))
    sums = (width + 2 * keys + queries * heads // key_heads, COMPUTED_IN[dtype])
    found = (result, *(each.grad for each in inputs))
    for name, mine, true in zip(("output", "dq", "dk", "dv"), found, right, strict=False):
        assert mine.dtype == dtype
        # A backend may round the probabilities, the gradient of the scores and the output to the dtype of its tensors.
        assert_within(mine, true, sizes[name], scores, sums, (4, dtype), name=name)
    return result, right


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_satisfies_the_contract(case, dtype, backend):
    requests.state({"attention": backend})
    check(case, dtype, attention)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["causal, Q < K", "mask, causal", "bias, mask, causal", "window", "packed, causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_it_satisfies_the_contract_in_every_dtype(case, dtype, backend):
    requests.state({"attention": backend})
    check(case, dtype, attention)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient", "sdpa", "reference"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_satisfies_the_contract_on_a_gpu(case, dtype, backend):
    requests.state({"attention": backend})
    try:
        check(case, dtype, attention, "cuda")
    except BackendUnavailable as refusal:
        pytest.skip(str(refusal))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fully_masked_row_is_zero_and_has_no_gradient(backend):
    requests.state({"attention": backend})
    q, k, v = (torch.randn(1, 2, 4, 64).requires_grad_() for _ in range(3))
    masked_out = torch.zeros(4, 4, dtype=torch.bool)
    masked_out[1] = True
    result = attention(q, k, v, masked_out=masked_out)
    result.backward(torch.full_like(result, 1e4))
    assert result[:, :, 1].eq(0).all()
    assert q.grad[:, :, 1].eq(0).all()
    assert all(each.grad.isfinite().all() for each in (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_causal_mask_given_explicitly_is_causal(backend):
    requests.state({"attention": backend})
    q, k, v = torch.randn(1, 2, 5, 64), torch.randn(1, 2, 9, 64), torch.randn(1, 2, 9, 64)
    late = torch.ones(5, 9, dtype=torch.bool).triu(9 - 5 + 1)
    torch.testing.assert_close(attention(q, k, v, causal=True), attention(q, k, v, masked_out=late))
    torch.testing.assert_close(
        attention(q, k, v, causal=True), attention(q, k, v, masked_out=masked_out_from_keep(~late))
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bias_gets_its_gradient_and_is_added_after_scaling(backend):
    requests.state({"attention": backend})
    batch, heads, _, queries, keys, width, _ = CASES["bias"]
    rng = np.random.default_rng(3)
    q, k, v, grad, bias = (
        torch.from_numpy(rng.standard_normal(shape))
        for shape in (
            (batch, heads, queries, width),
            *[(batch, heads, keys, width)] * 2,
            (batch, heads, queries, width),
        )
        + ((batch, 1, queries, keys),)
    )
    bias.requires_grad_()
    attention(q, k, v, bias=bias, scale=0.5).backward(grad)
    sizes: dict[str, np.ndarray] = {}
    arrays = [each.numpy() for each in (q, k, v, grad)]
    *_, right = oracle.attention(*arrays, scale=0.5, bias=bias.detach().numpy(), sizes=sizes)
    scores = (width + ELEMENTARY, torch.float64, 1 + 2 * float(sizes["scores"]))
    summed = sizes["dbias"].sum(1, keepdims=True)
    assert_within(bias.grad, right.sum(1, keepdims=True), summed, scores, (width + keys + heads, torch.float64))


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_in_fp32_is_not_rounded_to_the_dtype_of_the_queries(dtype, backend):
    """ALiBi far from the first key, where bf16 has multiples of 8 only and fp16 overflows; a small one comes first."""
    requests.state({"attention": backend})
    q, k, v = (torch.randn(1, 2, 9, 8, generator=torch.Generator().manual_seed(1)).to(dtype) for _ in range(3))
    bias = torch.arange(9.0).expand(1, 1, 9, 9) / 2
    near = attention(q, k, v, bias=bias, causal=True)
    far = attention(q, k, v, bias=bias + 2**17, causal=True)
    assert far.dtype == dtype
    torch.testing.assert_close(far, near, atol=2e-2, rtol=2e-2)


def test_gradients_of_a_row_whose_bias_is_wholly_the_least_number():
    """Also if a fused kernel of torch was chosen before, for an equal call with another bias."""
    dispatch.forget()
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    bias = torch.zeros(1, 1, 8, 8)
    attention(*tensors, bias=bias)
    least = bias.index_fill(2, torch.tensor(3), torch.finfo(torch.float32).min)
    hidden = torch.zeros(8, 8, dtype=torch.bool)
    hidden[5, :4] = True
    partly = least.clone()
    partly[..., 5, 4:] = torch.finfo(torch.float32).min
    for given in ({"bias": least}, {"bias": partly, "masked_out": hidden}):
        q, k, v = tensors
        scores = (q @ k.mT) * 0.25 + given["bias"]
        weights = scores.masked_fill(given.get("masked_out", torch.tensor(False)), -torch.inf).softmax(-1)
        expected = torch.autograd.grad((weights @ v).square().sum(), tensors)
        found = torch.autograd.grad(attention(*tensors, **given).square().sum(), tensors)
        for mine, true in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_negative_scale_is_a_scale(causal):
    q, k, v = shapes((1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    attention(q, k, v, causal=causal, scale=2.0)
    torch.testing.assert_close(
        attention(q, k, v, causal=causal, scale=-2.0), attention(-q, k, v, causal=causal, scale=2.0)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_probability_and_scaling(backend):
    requests.state({"attention": backend})
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 64, 64)
    shares = torch.stack([attention(q, k, torch.eye(64)[None, None], dropout_p=0.25) for _ in range(200)]) * 64
    torch.testing.assert_close(shares[shares != 0], torch.full_like(shares[shares != 0], 4 / 3))
    assert shares.eq(0).double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_only_a_window_of_keys_is_ever_masked_at_once(monkeypatch):
    from ascend_adapt.kernels.operators.attention import _sdpa

    seen = []
    real = _sdpa.scaled_dot_product_attention

    def recorded(q, k, v, attn_mask, *more, **options):
        seen.append(0 if attn_mask is None else attn_mask.numel())
        return real(q, k, v, attn_mask, *more, **options)

    monkeypatch.setattr(_sdpa, "scaled_dot_product_attention", recorded)
    q = torch.randn(1, 1, 2048, 64)
    attention(q, q, q, causal=True)
    attention(q[:, :, :1500], q, q, causal=True)
    attention(q, q, q, causal=True, cu_seqlens=torch.tensor([0, 1000, 2048], dtype=torch.int32))
    assert set(seen) == {0}
    attention(q, q, q, window=64)
    assert max(seen) <= 128 * (128 + 63)


def test_without_a_mask_the_scale_is_one_over_the_root_of_d():
    q, k, v = (torch.randn(1, 2, 5, 64) for _ in range(3))
    torch.testing.assert_close(attention(q, k, v), attention(q, k, v, scale=0.125))


def shapes(q=(2, 4, 5, 8), k=(2, 4, 7, 8), v=(2, 4, 7, 8)):
    return [torch.randn(shape) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("tensors", "given", "words"),
    [
        (shapes(), {"masked_out": torch.zeros(5, 7)}, "masked_out: is torch.float32 [5, 7], expected a bool tensor"),
        (shapes(), {"masked_out": torch.zeros(5, 7, dtype=torch.uint8)}, "masked_out: is torch.uint8 [5, 7]"),
        (shapes(), {"masked_out": [[True]]}, "masked_out: is list, expected a bool tensor"),
        (shapes(), {"bias": torch.zeros(5, 7, dtype=torch.bool)}, "bias: is torch.bool [5, 7], expected a float"),
        (
            shapes(),
            {"masked_out": torch.zeros(2, 1, 5, 5, dtype=torch.bool)},
            "masked_out: has shape [2, 1, 5, 5], expected a shape that broadcasts to the scores [2, 4, 5, 7]",
        ),
        (shapes(), {"bias": torch.zeros(1, 2, 4, 5, 7)}, "bias: has shape [1, 2, 4, 5, 7], expected a shape that"),
        (shapes(k=(2, 4, 7, 16)), {}, "q [2, 4, 5, 8], k [2, 4, 7, 16], v [2, 4, 7, 8]: expected"),
        (shapes(k=(2, 3, 7, 8), v=(2, 3, 7, 8)), {}, "4 heads are not a multiple of 3 key heads"),
        (shapes(q=(4, 5, 8)), {}, "q: has shape [4, 5, 8], expected [B, N, Q, D]"),
        (shapes(), {"dropout_p": 1.0}, "dropout_p=1.0: expected at least 0 and less than 1"),
        (shapes(), {"dropout_p": "a"}, "dropout_p: is 'a', expected a number"),
        (shapes(), {"scale": "a"}, "scale: is 'a', expected a number"),
        (shapes(), {"scale": torch.ones(8)}, "scale: is torch.float32 [8], expected a number"),
        (shapes(), {"scale": torch.ones(1, requires_grad=True)}, "scale: requires grad"),
        ([each.numpy() for each in shapes()], {}, "q: is ndarray, expected a float tensor [B, N, Q, D]"),
        (shapes(), {"window": 0}, "window=0: expected a number of keys"),
        (shapes(), {"cu_seqlens": torch.tensor([0, 5])}, "cu_seqlens: is torch.int64 [2], expected int32"),
        (shapes(), {"cu_seqlens": torch.tensor([0, 5]).int()}, "q has batch 2 and length 5, k has length 7"),
        (
            shapes((1, 4, 7, 8), (1, 4, 7, 8), (1, 4, 7, 8)),
            {"cu_seqlens": torch.tensor([0, 5, 3, 7]).int()},
            "cu_seqlens: is [0, 5, 3, 7], expected to rise from 0 to 7",
        ),
        ([torch.randn(1, 1, 2, 8), *(torch.randn(1, 1, 2, 8).half() for _ in range(2))], {}, "expected one dtype"),
    ],
)
def test_wrong_arguments_are_refused_with_both_shapes(tensors, given, words):
    with pytest.raises(KernelArgumentError) as caught:
        attention(*tensors, **given)
    assert words in str(caught.value)


@pytest.mark.parametrize("backend", ["npu", "flash"])
def test_a_backend_of_another_device_is_refused(backend):
    requests.state({"attention": backend})
    with pytest.raises(BackendUnavailable, match=f"backend '{backend}' was requested, but it is for .*on cpu"):
        attention(*shapes())


@pytest.mark.parametrize("wrong", [2.5, True])
def test_a_window_is_checked_even_if_an_equal_one_was_valid(wrong):
    """Calls are checked once for each kind, and True == 1."""
    attention(*shapes(), window=1)
    with pytest.raises(KernelArgumentError, match=f"window={wrong}: expected a number of keys"):
        attention(*shapes(), window=wrong)


def test_a_head_dim_of_zero_scores_nothing():
    q, k, v = shapes((1, 1, 2, 0), (1, 1, 3, 0), (1, 1, 3, 4))
    torch.testing.assert_close(attention(q, k, v), v.mean(2, keepdim=True).expand(1, 1, 2, 4))


def test_a_backend_that_does_not_exist_is_refused():
    requests.state({"attention": "tensor_cores"})
    with pytest.raises(BackendUnavailable, match="no backend 'tensor_cores' — choose one of npu, decode, flash"):
        attention(*shapes())


def enabled_kernels():
    """Return the kernels that torch may choose from."""
    of, kernels = torch.backends.cuda, torch.nn.attention.SDPBackend
    return {
        kernel
        for kernel, enabled in (
            (kernels.FLASH_ATTENTION, of.flash_sdp_enabled()),
            (kernels.EFFICIENT_ATTENTION, of.mem_efficient_sdp_enabled()),
            (kernels.CUDNN_ATTENTION, of.cudnn_sdp_enabled()),
            (kernels.MATH, of.math_sdp_enabled()),
        )
        if enabled
    }


def test_only_the_chosen_kernels_of_torch_are_enabled_in_the_context():
    from torch.nn.attention import SDPBackend

    from ascend_adapt.kernels.operators.attention import _sdpa

    before = enabled_kernels()
    torch.backends.cuda.enable_math_sdp(False)
    try:
        with contextlib.suppress(ZeroDivisionError), _sdpa.efficient._selected(None):
            assert enabled_kernels() == {SDPBackend.EFFICIENT_ATTENTION}
            raise ZeroDivisionError
        assert enabled_kernels() == before - {SDPBackend.MATH}
    finally:
        torch.backends.cuda.enable_math_sdp(True)


def test_threads_with_other_kernels_wait_for_each_other():
    """torch's switches are global to the process: two threads that set them concurrently left them wrong."""
    from concurrent.futures import ThreadPoolExecutor

    from ascend_adapt.kernels.operators.attention import _sdpa

    def many(one):
        seen = []
        for _ in range(200):
            with one._selected(None):
                first = enabled_kernels()
                time.sleep(0)
                seen.append((first, enabled_kernels()))
        return all(pair == (set(one.only.kernels),) * 2 for pair in seen)

    before = enabled_kernels()
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(many, [_sdpa.flash, _sdpa.efficient]))
    assert enabled_kernels() == before


def test_torchs_cuda_kernels_get_tensors_with_stride_1(monkeypatch):
    """Strides are not part of a kind of call, but these kernels require stride 1: for example transposed keys."""
    from ascend_adapt.kernels.operators.attention import AttentionCall, _sdpa

    strides, torchs_own = [], torch.nn.functional.scaled_dot_product_attention

    def attend(q, k, v, *more, **options):
        strides.extend(each.stride(-1) for each in (q, k, v))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torchs_own(q, k, v, *more, **options)

    monkeypatch.setattr(_sdpa, "scaled_dot_product_attention", attend)
    q, k, v = (torch.randn(1, 2, 8, 5).transpose(2, 3) for _ in range(3))
    found = _sdpa.efficient.run(AttentionCall(q, k, v, causal=True))
    assert strides == [1, 1, 1]
    torch.testing.assert_close(found, attention(q, k, v, causal=True))


def test_order_of_torchs_kernels_on_cuda():
    assert [one.name for one in KERNEL.backends if "cuda" in one.devices] == [
        "decode",
        "flash",
        "cudnn",
        "efficient",
        "sdpa",
    ]
