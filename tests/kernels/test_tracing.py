"""Every kernel works on tensors without values, and its torch.func transforms are correct."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ascend_adapt import kernels
from ascend_adapt.kernels.masks import is_causal
from ascend_adapt.kernels.tracing import has_values

pytestmark = [  # both torch's own, in its jvp and vmap
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*performance drop:UserWarning"),
]

ONES, MASK = torch.ones(4), torch.ones(5, 5, dtype=torch.bool).triu(1)
LABELS, WEIGHT, BORDERS = torch.tensor([3, 10, -100, 0, 7]), torch.randn(11, 4), torch.tensor([0, 2, 5]).int()
# name -> (function of one float tensor and the others, that tensor, the others)
CASES = {
    "cross_entropy": (lambda x, y: kernels.cross_entropy(x, y), torch.randn(5, 11), [LABELS]),
    "cross_entropy in bf16": (lambda x, y: kernels.cross_entropy(x, y), torch.randn(5, 11).bfloat16(), [LABELS]),
    "linear_cross_entropy": (
        lambda x, w, y: kernels.linear_cross_entropy(x, w, y),
        torch.randn(5, 4),
        [WEIGHT, LABELS],
    ),
    "linear_cross_entropy by token": (
        lambda x, w, y: kernels.linear_cross_entropy(x, w, y, reduction="none").square().sum(),
        torch.randn(5, 4),
        [WEIGHT, LABELS],
    ),
    "attention": (lambda x: kernels.attention(x, x, x, causal=True).square().sum(), torch.randn(1, 2, 5, 4), []),
    "attention with a mask": (
        lambda x, m: kernels.attention(x, x, x, masked_out=m).square().sum(),
        torch.randn(1, 2, 5, 4),
        [MASK],
    ),
    "attention with a window": (
        lambda x: kernels.attention(x, x, x, window=2).square().sum(),
        torch.randn(1, 2, 5, 4),
        [],
    ),
    "attention to packed documents": (
        lambda x, c: kernels.attention(x, x, x, causal=True, cu_seqlens=c).square().sum(),
        torch.randn(1, 2, 5, 4),
        [BORDERS],
    ),
    "gelu": (lambda x: kernels.gelu(x).square().sum(), torch.randn(5, 4), []),
    "swiglu": (lambda x: kernels.swiglu(x).square().sum(), torch.randn(5, 4), []),
    "rms_norm": (lambda x, w: kernels.rms_norm(x, w).square().sum(), torch.randn(5, 4), [ONES]),
    "layer_norm": (lambda x, w: kernels.layer_norm(x, w, w).square().sum(), torch.randn(5, 4), [ONES]),
    "masked_softmax": (
        lambda x, m: kernels.masked_softmax(x, masked_out=m).square().sum(),
        torch.randn(1, 2, 5, 5),
        [MASK],
    ),
    "rotary": (
        lambda x, c, s: kernels.rotary(x, c, s).square().sum(),
        torch.randn(1, 2, 5, 4),
        [MASK[:, :4] * 1.0] * 2,
    ),
}


def plain(function, x, others):
    """Return the value and its gradient from autograd."""
    leaf = x.detach().clone().requires_grad_()
    value = function(leaf, *others)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", CASES)
def test_it_computes_under_a_fake_mode_and_on_meta(name):
    function, x, others = CASES[name]
    value, gradient = plain(function, x, others)
    with FakeTensorMode() as mode:
        inside = plain(function, mode.from_tensor(x), [mode.from_tensor(one) for one in others])
    outside = value
    if "attention" not in name and "linear" not in name:  # what they make by themselves is real outside of the mode
        outside = function(mode.from_tensor(x), *map(mode.from_tensor, others))
    meta = plain(function, x.to("meta"), [one.to("meta") for one in others])
    for given in (inside, (outside, gradient), meta):
        assert [(one.dtype, one.shape) for one in given] == [(one.dtype, one.shape) for one in (value, gradient)]


@pytest.mark.parametrize("name", CASES)
def test_torch_func_transforms_are_correct(name):
    function, x, others = CASES[name]
    value, gradient = plain(function, x, others)
    batch = torch.stack([x, x.flip(0)])
    expected = [plain(function, one, others) for one in batch]
    close = {"rtol": 2e-2, "atol": 2e-2} if x.dtype == torch.bfloat16 else {}

    def alone(one):
        return function(one, *others)

    torch.testing.assert_close(torch.func.grad(alone)(x), gradient, **close)
    torch.testing.assert_close(torch.func.vmap(alone)(batch), torch.stack([each[0] for each in expected]), **close)
    each = torch.func.vmap(torch.func.grad(alone))(batch)
    torch.testing.assert_close(each, torch.stack([one[1] for one in expected]), **close)
    torch.testing.assert_close(torch.func.functionalize(alone)(x), value, **close)
    if "attention" not in name:  # torch's own has no forward derivative on a CPU
        change = torch.linspace(-1, 1, x.numel()).view_as(x).to(x.dtype)
        forward = torch.func.jvp(alone, (x,), (change,))[1]
        torch.testing.assert_close(forward, (gradient * change).sum().to(forward.dtype), **close)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_recorded_by_make_fx(name, mode):
    function, x, others = CASES[name]
    recorded = make_fx(function, tracing_mode=mode)(x, *others)
    torch.testing.assert_close(recorded(x, *others), function(x, *others))


def test_a_traced_call_leaves_the_choice_for_real_ones_alone():
    kernels.operators.gelu.KERNEL.forget()
    torch.func.vmap(kernels.gelu)(torch.randn(2, 5, 4))
    with FakeTensorMode() as mode:
        kernels.gelu(mode.from_tensor(torch.randn(5, 4)))
    assert not kernels.operators.gelu.KERNEL.choices
    kernels.gelu(torch.randn(5, 4))
    assert len(kernels.operators.gelu.KERNEL.choices) == 1


def test_a_fake_list_does_not_use_the_choice_of_a_real_one():
    """Outside of its mode; a backend such as Triton's reads addresses, which a fake tensor does not have."""
    kernel = kernels.operators.l2_norms.KERNEL
    kernel.forget()
    kernels.l2_norms([torch.ones(4)])
    (key,) = kernel._chosen_without
    kernel._chosen_without[key] = lambda call: [each.data_ptr() for each in call.tensors]
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(4))
    assert kernels.l2_norms([fake]).shape == (1,)
    kernel.forget()


def test_whether_there_are_values():
    real = torch.zeros(2)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
    seen = []
    torch.func.vmap(lambda x: seen.append(has_values(x)) or x)(real)
    make_fx(lambda x: seen.append(has_values(x)) or x + 1)(real)
    assert (has_values(real), has_values(fake), has_values(real.to("meta")), seen) == (True, False, False, [False] * 2)
    assert is_causal(MASK, 5, 5)
    assert not is_causal(mode.from_tensor(MASK), 5, 5)
