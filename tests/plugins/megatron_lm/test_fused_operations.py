"""The swaps under Megatron-core's local layers: what they make of its arguments. The code itself needs a GPU."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from types import FunctionType, SimpleNamespace

import pytest
import torch

from ascend_adapt.kernels import gelu
from ascend_adapt.patches.apply.replacement import _wrapping
from ascend_adapt_plugins.megatron_lm import fused_operations, optimizer

S, B, N, D = 7, 2, 3, 8


def layer(kind: str = "causal", window: tuple[int, int] | None = None, scale: float | None = None) -> SimpleNamespace:
    """Stands for Megatron's DotProductAttention: the attributes that its forward reads."""
    softmax = SimpleNamespace(attn_mask_type=SimpleNamespace(name=kind), window_size=window, scale=scale)
    config = SimpleNamespace(softmax_type="vanilla", sequence_parallel=False)
    return SimpleNamespace(
        config=config,
        scale_mask_softmax=softmax,
        attention_dropout=torch.nn.Dropout(0.1),
        training=False,
        softmax_scale=0.3,
    )


def right(q, k, v, hidden, scale):
    """Scores, mask, softmax and sum, [S, B, N, D] -> [S, B, N * D], in float64."""
    q, k, v = (each.double().permute(1, 2, 0, 3) for each in (q, k, v))
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)


def call(instance, q, k, v, mask, **more):
    def upstream(*args, **kwargs):
        raise AssertionError("handed to Megatron's own code")

    return fused_operations.fused_attention.function(upstream, instance, (q, k, v, mask), more)


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return [torch.randn(S, B, N, D) for _ in range(3)]


FUTURE = torch.ones(S, S, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("given", ["nothing", "the future", "documents", "4 axes"])
def test_a_causal_layer_hides_the_future_and_what_its_mask_hides(qkv, given):
    hidden = FUTURE
    mask = {"nothing": None, "the future": FUTURE, "4 axes": FUTURE.expand(B, 1, S, S).clone()}.get(given)
    if given == "documents":
        mask = hidden = FUTURE | (torch.arange(S)[:, None] >= 4) & (torch.arange(S)[None] < 4)
    torch.testing.assert_close(call(layer(), *qkv, mask).double(), right(*qkv, hidden, 0.3), atol=1e-5, rtol=1e-5)


def test_the_result_lies_as_megatrons_own(qkv, monkeypatch):
    from ascend_adapt import kernels

    attend = kernels.attention
    # As flash attention leaves its result in memory: [B, S, N, D].
    as_flash = lambda *args, **more: attend(*args, **more).transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    monkeypatch.setattr(kernels, "attention", as_flash)
    assert call(layer(), *qkv, None).is_contiguous()


def test_a_layer_that_is_not_causal_hides_what_its_mask_hides(qkv):
    hidden = torch.rand(B, 1, S, S) < 0.3
    hidden[..., 0] = False
    torch.testing.assert_close(
        call(layer("padding"), *qkv, hidden).double(), right(*qkv, hidden, 0.3), atol=1e-5, rtol=1e-5
    )
    none = torch.zeros(S, S, dtype=torch.bool)
    torch.testing.assert_close(
        call(layer("padding"), *qkv, None).double(), right(*qkv, none, 0.3), atol=1e-5, rtol=1e-5
    )


def test_a_window_and_the_scale_of_the_softmax(qkv):
    ahead = torch.arange(S)[:, None] - torch.arange(S)[None]
    hidden = (ahead < 0) | (ahead > 2)
    torch.testing.assert_close(
        call(layer(window=(2, 0), scale=4.0), *qkv, None).double(), right(*qkv, hidden, 1.2), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["packed_seq_params", "attention_bias", "softmax", "window"])
def test_what_only_megatron_knows_goes_to_megatron(qkv, kind):
    instance, more = layer(), {}
    if kind == "softmax":
        instance.config.softmax_type = "learnable"
    elif kind == "window":
        instance.scale_mask_softmax.window_size = (2, 2)
    else:
        more[kind] = object()
    with pytest.raises(AssertionError, match="Megatron's own"):
        call(instance, *qkv, None, **more)


def test_a_mask_that_is_written_to_is_read_again(qkv):
    mask = FUTURE.clone()
    first = call(layer(), *qkv, mask)
    mask[4:, :4] = True
    again = call(layer(), *qkv, mask)
    assert not torch.equal(first, again)
    torch.testing.assert_close(again.double(), right(*qkv, mask, 0.3), atol=1e-5, rtol=1e-5)


def test_a_mask_of_inference_mode_is_read_each_time(qkv):
    """Such tensors have no count of writes."""
    with torch.inference_mode():
        mask = FUTURE.clone()
        first = call(layer(), *qkv, mask)
        torch.testing.assert_close(first.double(), right(*qkv, mask, 0.3), atol=1e-5, rtol=1e-5)
        mask[4:, :4] = True
        again = call(layer(), *qkv, mask)
        torch.testing.assert_close(again.double(), right(*qkv, mask, 0.3), atol=1e-5, rtol=1e-5)


def test_the_norm_of_many_gradients_is_that_of_one():
    torch.manual_seed(0)
    tensors = [torch.randn(3), torch.randn(4, 5), torch.randn(1), torch.randn(7).bfloat16()]
    norm, none = optimizer.grad_norm_on_device.function(2048, None, [tensors], False)
    torch.testing.assert_close(norm, torch.cat([each.flatten().float() for each in tensors]).norm().reshape(1))
    assert none is None


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_many_tensors_are_scaled_into_others_or_in_place(scale):
    source = [torch.randn(3), torch.randn(2, 2)]
    target = [torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16)]
    optimizer.multi_tensor_scale_in_one_operation.function(2048, None, [source, target], scale)
    for one, other in zip(source, target, strict=True):
        assert torch.equal(other, (one * scale).bfloat16())
    before = [each.clone() for each in source]
    optimizer.multi_tensor_scale_in_one_operation.function(2048, None, [source, source], scale)
    for one, other in zip(before, source, strict=True):
        assert torch.equal(other, one * scale)


def test_the_loss_of_each_token_is_megatrons():
    group = SimpleNamespace(size=lambda: 1)
    logits, target = torch.randn(5, 2, 11), torch.randint(0, 11, (5, 2))
    loss = fused_operations.loss_without_fp32_copy.function(None, None, (logits, target), {"tp_group": group})
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(5, 2)
    torch.testing.assert_close(loss, expected)
    handed_on = fused_operations.loss_without_fp32_copy.function(lambda *a, **k: "own", None, (logits, target, 0.1), {})
    assert handed_on == "own"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_tensors_are_copied_into_others(dtype):
    source = [torch.randn(3), torch.randn(2, 2)]
    target = [torch.zeros(3, dtype=dtype, requires_grad=True), torch.zeros(2, 2, dtype=dtype)]
    copy = optimizer.multi_tensor_copy_in_one_operation.function
    copy(None, None, (source, target), {})
    for one, other in zip(source, target, strict=True):
        assert torch.equal(other, one.to(dtype))
    own = lambda *args, **kwargs: "Megatron's own"  # noqa: E731
    assert copy(own, None, (source, target, torch.zeros(1)), {}) == "Megatron's own"
    assert copy(own, None, (source, target[:1]), {}) == "Megatron's own"
    assert copy(own, None, ([], []), {}) == "Megatron's own"


@pytest.mark.parametrize(
    "total", [4.0, 0.5, math.nan, math.inf, *map(torch.tensor, (4.0, [0.5], math.nan, [math.nan], math.inf))]
)
def test_gradients_are_clipped_as_megatron_does(total):
    parameters = [torch.zeros(3, requires_grad=True) for _ in range(3)]
    for each in parameters[:2]:
        each.grad = torch.randn(3)
    before = [each.grad.clone() for each in parameters[:2]]
    clip = optimizer.clip_gradients_in_one_operation.function
    clip(None, None, (parameters, 1.0, total), {})
    factor = min(1.0, 1.0 / (float(total) + 1.0e-6))  # 1 for a NaN
    for each, was in zip(parameters, before, strict=False):
        torch.testing.assert_close(each.grad, was * factor)
    assert parameters[2].grad is None


def test_gradients_that_megatron_itself_clips():
    """Megatron's code gets the norm as a number, because it needs TransformerEngine for a tensor."""

    def own(parameters, max_norm, total_norm, use_decoupled_grad=False):
        return "Megatron's own", total_norm

    wide, plain = (torch.zeros(3, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.float32))
    wide.grad, plain.grad = torch.zeros_like(wide), torch.zeros_like(plain)
    clip = optimizer.clip_gradients_in_one_operation.function
    for norm in (4.0, torch.tensor([4.0])):
        for parameters, more in (([wide], {}), ([], {}), ((plain,), {}), ([plain], {"use_decoupled_grad": True})):
            found = clip(own, None, (parameters, 1.0, norm), more)
            assert found == ("Megatron's own", 4.0)
            assert type(found[1]) is float


def test_the_norm_is_fp32_also_of_parameters_in_fp64():
    """Other ranks, which may have none, reduce it in fp32."""
    norm, _ = optimizer.grad_norm_on_device.function(2048, None, [[torch.full((4,), 2.0).double()]], False)
    assert (norm.dtype, norm.tolist()) == (torch.float32, [4.0])


def clip_grad_by_total_norm_fp32(parameters, max_norm, total_norm):
    """Stands for Megatron's function."""


def norm_function(*wrappers):
    """Stands for Megatron's function in a module whose clipping has these wrappers, the outermost last."""
    clip = clip_grad_by_total_norm_fp32
    for each in wrappers:
        clip = _wrapping(clip, each)
    return FunctionType((lambda *args: "Megatron's own").__code__, {"clip_grad_by_total_norm_fp32": clip})


def another_patch(wrapped, instance, args, kwargs):
    """A wrapper of another plugin."""


PATCHED = norm_function(another_patch, optimizer.clip_gradients_in_one_operation.function, another_patch)


def test_the_norm_of_all_ranks_is_not_read_by_the_host(monkeypatch):
    reduced = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total, group: reduced.append(group) or total.mul_(4))
    grads = [torch.randn(3), torch.randn(4, 5)]
    group = {"grad_stats_parallel_group": "all"}
    norm = optimizer.grad_norm_as_tensor.function(PATCHED, None, (grads,), group)
    assert norm.shape == ()
    assert reduced == ["all"]
    torch.testing.assert_close(norm, 2 * torch.cat([each.flatten() for each in grads]).norm())
    inner = _wrapping(PATCHED, another_patch)
    assert optimizer.grad_norm_as_tensor.function(inner, None, (grads,), group).shape == ()
    of_an_object = FunctionType(
        PATCHED.__code__, {"clip_grad_by_total_norm_fp32": partial(clip_grad_by_total_norm_fp32)}
    )
    for other in (norm_function(), norm_function(another_patch), of_an_object):
        assert optimizer.grad_norm_as_tensor.function(other, None, (grads,), {}) == "Megatron's own"


@pytest.mark.parametrize(
    "given",
    [
        ([],),
        ([torch.zeros(2)], 1),
        ([torch.zeros(2, dtype=torch.float64)],),
        (torch.zeros(2),),
        ([torch.zeros(2)], 2.0, 3, 4),
    ],
)
def test_norms_that_megatron_itself_computes(given):
    assert optimizer.grad_norm_as_tensor.function(PATCHED, None, given, {}) == "Megatron's own"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_norm_has_torchs_result(dtype):
    norm = fused_operations.fused_layer_norm.function(lambda: torch.nn.LayerNorm(6).to(dtype), None, (), {})
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(4, 6).to(dtype)
    assert torch.equal(norm(x), torch.nn.LayerNorm.forward(norm, x))
    assert "forward" in vars(norm)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.nn.LayerNorm.forward(norm, x).dtype
    with pytest.raises(RuntimeError, match="normalized_shape"):
        norm(torch.randn(4, 5).to(dtype))
    other = fused_operations.fused_layer_norm.function(lambda: torch.nn.RMSNorm(6), None, (), {})
    assert "forward" not in vars(other)


@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        (fused_operations.fused_layer_norm, torch.nn.LayerNorm),
        (fused_operations.fused_rms_norm, torch.nn.RMSNorm),
    ],
)
def test_a_norm_that_was_saved_is_torchs(patch, kind):
    """So that a model saved as a whole can be loaded, also without ascend_adapt."""
    norm = patch.function(lambda: kind(6), None, (), {})
    loaded, copied = pickle.loads(pickle.dumps(norm)), copy.deepcopy(norm)
    assert loaded.forward.__func__ is kind.forward
    assert copied.forward.__self__ is copied
    x = torch.randn(4, 6)
    torch.testing.assert_close(loaded(x), norm(x))


def bias_dropout_add(*args):
    return fused_operations.fused_bias_dropout_add.function(lambda *given: "Megatron's own", None, args, {})


@pytest.fixture
def with_kernels(monkeypatch):
    """Compute with the references instead of the kernels for GPUs."""
    monkeypatch.setattr(fused_operations, "_fuses", lambda kind: True)


@pytest.mark.parametrize("bias", [None, torch.randn(6)])
def test_bias_and_residual_without_dropout_are_megatrons(with_kernels, bias):
    x, residual = torch.randn(4, 2, 6), torch.randn(4, 2, 6)
    expected = residual + (x if bias is None else x + bias)
    assert torch.equal(bias_dropout_add((x, bias), residual, 0.0), expected)


def test_dropout_draws_its_seed_from_the_current_generator(with_kernels):
    """Megatron restores the state of the generator before it recomputes, and expects the same mask."""
    x, residual = torch.ones(40, 2, 6), torch.zeros(40, 2, 6)
    state = torch.get_rng_state()
    first, second = (bias_dropout_add((x, None), residual, 0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(bias_dropout_add((x, None), residual, 0.5), first)
    assert first.unique().tolist() == [0.0, 2.0]


@pytest.mark.parametrize("given", ["no kernels", "dtype", "shape", "bias", "float64", "all", "traced"])
def test_sums_that_megatron_itself_computes(monkeypatch, given):
    monkeypatch.setattr(fused_operations, "_fuses", lambda kind: given != "no kernels")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: given == "traced")
    x, residual, bias = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
    if given == "dtype":
        residual = residual.bfloat16()
    elif given == "shape":
        residual = residual[:1]
    elif given == "bias":
        bias = bias.bfloat16()
    elif given == "float64":
        x, residual, bias = x.double(), residual.double(), bias.double()
    assert bias_dropout_add((x, bias), residual, 1.0 if given == "all" else 0.1) == "Megatron's own"


def test_gelu_has_megatrons_constants(with_kernels):
    """The functions differ in float64 by less than the rounding of fp32, in which both compute."""
    x, bias = torch.linspace(-8, 8, 4001, dtype=torch.float64).reshape(-1, 1), torch.zeros(1, dtype=torch.float64)
    x.requires_grad_()
    found = gelu(x, bias, approximate="tanh")
    right = x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
    pairs = (found, right), tuple(torch.autograd.grad(each.sum(), x)[0] for each in (found, right))
    for mine, true in pairs:
        torch.testing.assert_close(mine, true, atol=torch.finfo(torch.float32).eps, rtol=0)
    given = torch.randn(4, 6), torch.randn(6)
    assert torch.equal(
        fused_operations.fused_bias_gelu.function(None, None, given, {}), gelu(*given, approximate="tanh")
    )


def test_gelus_that_megatron_itself_computes(with_kernels):
    own, x = (lambda *args: "Megatron's own"), torch.zeros(2, 3)
    assert fused_operations.fused_bias_gelu.function(own, None, (x, None), {}) == "Megatron's own"
    assert fused_operations.fused_bias_gelu.function(own, None, (x, x), {}) == "Megatron's own"
    assert fused_operations.fused_bias_gelu.function(own, None, (x.double(), x[0].double()), {}) == "Megatron's own"


@pytest.mark.parametrize(("options", "fused"), [({}, True), ({"foreach": True}, None), ({"fused": False}, False)])
def test_adam_becomes_fused_unless_a_choice_was_made(options, fused):
    inner = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], **options)
    made = SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=inner), SimpleNamespace(optimizer=None)])
    assert optimizer.fused_adam.function(lambda: made, None, (), {}) is made
    assert inner.param_groups[0]["fused"] is fused
    inner.param_groups[0]["params"][0].grad = torch.ones(2)
    inner.step()


@pytest.mark.parametrize("label", [-1, -100])
def test_a_loss_that_is_masked_later_is_finite(label):
    group = SimpleNamespace(size=lambda: 1)
    logits, target = torch.randn(3, 2, 11, requires_grad=True), torch.randint(0, 11, (3, 2))
    target[1, 0] = label
    loss = fused_operations.loss_without_fp32_copy.function(None, None, (logits, target), {"tp_group": group})
    (loss * (target >= 0)).sum().backward()
    assert loss.isfinite().all()
    assert logits.grad.isfinite().all()
    assert not logits.grad[1, 0].any()
