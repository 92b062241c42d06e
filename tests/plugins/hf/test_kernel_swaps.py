"""The swaps under transformers' models, on the CPU with the real transformers."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ascend_adapt
from ascend_adapt_plugins.hf import kernel_swaps

JOB = Path(__file__).parents[2] / "jobs" / "tiny_language_model.py"

STEPS = 50  # at three times the learning rate, training amplifies the rounding of the fused GELU up to 2e-2


def train(model: str, *more: str) -> dict:
    command = [sys.executable, str(JOB), model, str(STEPS), *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["gpt2", pytest.param("gpt_neox", marks=pytest.mark.every_case)])
def test_50_steps_with_and_without_the_swaps_are_the_same(model):
    plain, adapted = train(model), train(model, "--adapt")
    apart = [abs(one - other) for one, other in zip(plain["losses"], adapted["losses"], strict=True)]
    assert max(apart) < 1e-5
    assert plain["losses"][-1] < plain["losses"][0] - 2
    on_cpu = {"fused_new_gelu", "fused_attention", "loss_without_fp32_copy"}
    swaps = {patch.name for patch in ascend_adapt.patches_in(kernel_swaps)}
    assert {name for name in swaps if adapted["states"][name] == "applied"} == on_cpu
    assert "attention: sdpa" in adapted["choices"]


@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)])
@pytest.mark.parametrize("shifted", [False, True])
def test_the_loss_is_transformers_own(items, shifted):
    from transformers.loss.loss_utils import ForCausalLMLoss

    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 11), torch.randint(0, 11, (2, 5))
    labels[0, 1] = -100
    more = {"shift_labels": labels} if shifted else {}
    sides = []
    for loss_of in (kernel_swaps.causal_lm_loss, ForCausalLMLoss):
        leaf = logits.clone().requires_grad_()
        loss = loss_of(leaf, labels, vocab_size=11, num_items_in_batch=items, **more)
        loss.backward()
        sides.append((loss.detach(), leaf.grad))
    for ours, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(ours, theirs)


class Layer(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
@pytest.mark.parametrize("lengths", [(6, 6), (1, 6), (3, 6)])
def test_attention_is_transformers_own(mask, lengths):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    queries, keys = lengths
    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)
    keep = torch.rand(2, 1, queries, keys) < 0.7
    keep[..., 0] = True
    masks = {"none": None, "bool": keep, "float": torch.where(keep, 0.0, float("-inf"))}
    ours, theirs = (
        attend(Layer(), q, k, v, masks[mask], scaling=0.3)[0]
        for attend in (kernel_swaps.attention_interface, sdpa_attention_forward)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtypes", ["fp32, fp32, bf16", "fp32", "bf16"])
def test_attention_under_autocast_is_that_of_torch_under_autocast(dtypes):
    """Rotated queries and keys are fp32 there, values bf16: Llama and GPT-NeoX trained under autocast."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    torch.manual_seed(0)
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    kinds = [kinds[each] for each in (dtypes.split(", ") * 3)[:3]]
    tensors = [torch.randn(2, 2, 6, 8, dtype=kind, requires_grad=True) for kind in kinds]
    layer, sides = Layer(), []
    layer.num_key_value_groups = 1
    for attend in (kernel_swaps.attention_interface, sdpa_attention_forward):
        with torch.autocast("cpu", torch.bfloat16):
            result = attend(layer, *tensors, None, scaling=0.3)[0]
        sides.append([result, *torch.autograd.grad(result.float().square().sum(), tensors)])
    for ours, theirs in zip(*sides, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_attention_that_torch_broadcasts_or_refuses_is_left_to_transformers():
    q, k, v = torch.randn(1, 2, 6, 8), torch.randn(3, 2, 6, 8), torch.randn(3, 2, 6, 8)
    layer = Layer()
    layer.num_key_value_groups = 1
    assert kernel_swaps.attention_interface(layer, q, k, v, None)[0].shape == (3, 6, 2, 8)
    with pytest.raises(RuntimeError, match="dtype"):
        kernel_swaps.attention_interface(layer, k.bfloat16(), k, v, None)


@pytest.fixture
def attentions(monkeypatch):
    """transformers' attentions by name, which the test may change."""
    import transformers.modeling_utils

    monkeypatch.setenv("ASCEND_ADAPT_PLUGINS", "hf")
    found = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setattr(type(found), "_global_mapping", dict(found._global_mapping))
    monkeypatch.setattr(found, "_local_mapping", {})
    return found


def registered(attentions, function):
    attentions.register("sdpa", function)


def put(attentions, function):
    attentions["sdpa"] = function


@pytest.mark.parametrize("by", [registered, put])
@pytest.mark.parametrize("late", [False, True])
def test_an_attention_of_somebody_is_called(by, late, attentions):
    from transformers import LlamaConfig, LlamaForCausalLM

    seen = []

    def of_somebody(module, query, key, value, attention_mask, **kwargs):
        seen.append(kwargs["scaling"])
        return query.transpose(1, 2), None

    if not late:
        by(attentions, of_somebody)
    with ascend_adapt.enabled(device="cpu") as status:
        assert status["fused_attention"].state == ("applied" if late else "drifted"), status["fused_attention"]
        if late:
            by(attentions, of_somebody)
        config = LlamaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        LlamaForCausalLM(config)(torch.arange(4)[None])
        now = ascend_adapt.status()["fused_attention"]
    assert seen == [8**-0.5] * 2
    assert now.state == ("drifted" if not late else "lost" if by is put else "applied")
    assert late or f"['sdpa'] is {__name__}.test_an_attention_of_somebody" in now.reason
    assert attentions["sdpa"] is of_somebody


def test_an_attention_that_is_registered_after_disable_is_called(attentions):
    with ascend_adapt.enabled(device="cpu"):
        assert attentions["sdpa"] is kernel_swaps.attention_interface
    attentions.register("sdpa", len)
    assert attentions["sdpa"] is len


def test_a_cache_of_pages_is_for_transformers(attentions, monkeypatch):
    """From 5.19 to 5.23 its sdpa attention itself takes the keys and values from such a cache."""
    called = []
    monkeypatch.setattr(
        "transformers.integrations.sdpa_attention.sdpa_attention_forward", lambda *_, **given: called.append(given)
    )
    attentions.register("sdpa", transformers_sdpa())
    q = k = v = torch.randn(1, 2, 6, 8)
    kernel_swaps.attention_interface(Layer(), q, k, v, None, cache=None)
    assert not called
    kernel_swaps.attention_interface(Layer(), q, k, v, None, cache="pages")
    assert [one["cache"] for one in called] == ["pages"]


def transformers_sdpa():
    from transformers.integrations import sdpa_attention

    return sdpa_attention.sdpa_attention_forward


def test_what_torch_func_transforms_is_left_to_transformers():
    from transformers.loss.loss_utils import ForCausalLMLoss

    def patched(*args, **kwargs):
        return kernel_swaps.loss_without_fp32_copy.function(ForCausalLMLoss, None, args, kwargs)

    logits, labels = torch.randn(2, 5, 11).bfloat16(), torch.randint(0, 11, (2, 5))
    found, right = (
        torch.func.grad(lambda x, loss_of=loss_of: loss_of(x, labels, vocab_size=11))(logits)
        for loss_of in (patched, ForCausalLMLoss)
    )
    torch.testing.assert_close(found, right)


def test_gelu_is_given_its_input_by_name_too():
    x = torch.randn(5)
    result = kernel_swaps.fused_new_gelu.function(lambda **_: "own", None, (), {"input": x})
    torch.testing.assert_close(result, torch.nn.functional.gelu(x, approximate="tanh"))


def adapted_head() -> torch.nn.Linear:
    class Model:
        def __init__(self) -> None:
            self.head = torch.nn.Linear(8, 13, bias=False)

        def get_output_embeddings(self):
            return self.head

    model = Model()
    kernel_swaps.aligned_logits.function(lambda: None, model, (), {})
    return model.head


def test_an_adapted_output_layer_is_still_torchs():
    head, x = adapted_head(), torch.randn(3, 8)
    assert head.forward.__func__ is kernel_swaps.forward
    assert type(head) is torch.nn.Linear
    torch.testing.assert_close(head(x), torch.nn.functional.linear(x, head.weight))
    twin = copy.deepcopy(head)
    assert twin.forward.__self__ is twin
    restored = pickle.loads(pickle.dumps(head))
    torch.testing.assert_close(restored(x), head(x))
    assert b"ascend_adapt" not in pickle.dumps(head)


def test_layers_with_aligned_rows_or_a_bias_are_left_alone():
    for layer in (torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(8, 13)):

        class Model:
            def get_output_embeddings(self, layer=layer):
                return layer

        kernel_swaps.aligned_logits.function(lambda: None, Model(), (), {})
        assert "forward" not in vars(layer)


def test_a_cross_entropy_of_somebody_else_is_used(monkeypatch):
    """Liger puts its own in the place of torch's, before or after enable()."""
    logits, labels = torch.randn(1, 5, 11), torch.randint(0, 11, (1, 5))
    from transformers.loss.loss_utils import ForCausalLMLoss

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda *args, **kwargs: torch.tensor(7.0))
    assert kernel_swaps.loss_without_fp32_copy.function(ForCausalLMLoss, None, (logits, labels, 11), {}) == 7


WHAT_THE_TRAINER_ASKS = """
import ascend_adapt
ascend_adapt.enable(device="cpu")
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
applied = {f"{one.plugin}.{one.patch}" for one in ascend_adapt.status().outcomes if one.state == "applied"}
assert "hf.loss_without_fp32_copy" in applied
assert LOSS_MAPPING["ForCausalLM"] is ForCausalLMLoss
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 11}
model = LlamaForCausalLM(LlamaConfig(**sizes))
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", report_to="none", use_cpu=True))
labels = torch.zeros(2, 5, dtype=torch.long)
items = trainer._get_num_items_in_batch([{"labels": labels}], torch.device("cpu"))
assert int(items) == 8, items
"""


def test_the_trainer_counts_as_many_tokens_as_have_a_loss(tmp_path):
    """It asks whether the loss of the model is transformers' own function; with another it counts all 10."""
    ended = subprocess.run([sys.executable, "-c", WHAT_THE_TRAINER_ASKS], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]


def _traced_losses(loss, logits, labels):
    """The loss, its dtype and gradient, under each way to trace it that memory estimators and torch.func use."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    vocab = logits.shape[-1]
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(logits).requires_grad_()
        value = loss(fake, mode.from_tensor(labels), vocab)
        value.backward()
        yield "fake", (value.dtype, value.shape, fake.grad.dtype, fake.grad.shape)
    value = loss(logits.to("meta"), labels.to("meta"), vocab)
    yield "meta", (value.dtype, value.shape)
    one = lambda x, y: loss(x, y, vocab)  # noqa: E731
    yield "vmap", torch.func.vmap(one)(torch.stack([logits] * 2), torch.stack([labels] * 2))
    yield "grad", torch.func.grad(one)(logits, labels)
    yield "jvp", torch.func.jvp(lambda x: one(x, labels), (logits,), (logits,))[1]
    yield "functionalize", torch.func.functionalize(one)(logits, labels)
    for mode in ("real", "fake", "symbolic"):
        yield f"make_fx {mode}", make_fx(one, tracing_mode=mode)(logits, labels)(logits, labels)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in its jvp
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_loss_is_transformers_own_also_where_it_is_traced(dtype):
    from transformers.loss import loss_utils

    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 11, dtype=dtype), torch.randint(0, 11, (2, 5))
    plain = dict(_traced_losses(loss_utils.ForCausalLMLoss, logits, labels))
    expected = loss_utils.ForCausalLMLoss(logits, labels, 11)
    with ascend_adapt.enabled(device="cpu") as status:
        assert status["loss_without_fp32_copy"].state == "applied"
        ours = dict(_traced_losses(loss_utils.ForCausalLMLoss, logits, labels))
        torch.testing.assert_close(loss_utils.ForCausalLMLoss(logits, labels, 11), expected)
    assert ours.keys() == plain.keys()
    for name in ("fake", "meta"):
        assert ours.pop(name) == plain.pop(name)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("wrong", ["label", "shape", "dtype"])
def test_what_does_not_fit_raises_what_transformers_raises(wrong):
    from transformers.loss import loss_utils

    logits, labels = torch.randn(2, 5, 11), torch.randint(0, 11, (2, 5))
    if wrong == "label":
        labels[0, 3] = 11
    labels = {"shape": labels[:1], "dtype": labels.int()}.get(wrong, labels)
    raised = []
    for context in (contextlib.nullcontext(), ascend_adapt.enabled(device="cpu")):
        with context, pytest.raises(Exception) as error:  # noqa: B017, PT011
            loss_utils.ForCausalLMLoss(logits, labels, 11)
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]
