"""The native model compared with GPT-2 and GPT-NeoX of transformers: loss and every gradient, from the same weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from native.small_models import GATED, GPT2, LENGTH, NEOX, batch, config
from native.training_bounds import apart

from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.parameters import placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel
from ascend_adapt.native.step.trainer import Trainer

transformers = pytest.importorskip("transformers", reason="not checked: transformers")

ALONE = meshes.single(torch.device("cpu"))


def gpt_neox(model):
    settings = transformers.GPTNeoXConfig(
        vocab_size=model.padded_vocab_size,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.ffn_hidden_size,
        hidden_act="gelu",
        rotary_pct=model.rotary_fraction,
        rotary_emb_base=model.rotary_base,
        max_position_embeddings=LENGTH,
        use_parallel_residual=model.parallel_residual,
        layer_norm_eps=model.norm_eps,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    names = {
        "gpt_neox.embed_in": "embedding.words",
        "gpt_neox.layers": "layers",
        "input_layernorm": "input_norm",
        "post_attention_layernorm": "post_attention_norm",
        "gpt_neox.final_layer_norm": "final_norm",
        "lm_head": "head",
        "embed_out": "head",
    }
    return transformers.GPTNeoXForCausalLM(settings), names, lambda name, values: values


def gpt2(model):
    settings = transformers.GPT2Config(
        vocab_size=model.padded_vocab_size,
        n_embd=model.hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_heads,
        n_inner=model.ffn_hidden_size,
        n_positions=LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    names = {
        "transformer.wte": "embedding.words",
        "transformer.wpe": "embedding.positions",
        "transformer.h": "layers",
        "ln_1": "input_norm",
        "ln_2": "post_attention_norm",
        "transformer.ln_f": "final_norm",
        "attn.c_attn": "attention.query_key_value",
        "attn.c_proj": "attention.dense",
        "mlp.c_fc": "mlp.dense_h_to_4h",
        "mlp.c_proj": "mlp.dense_4h_to_h",
    }

    def from_ours(name, values):
        if "c_attn" in name:
            # Ours: for each head query, key, value; theirs: all queries, all keys, all values.
            per_head = values.reshape(model.num_heads, 3, model.head_dim, -1)
            values = per_head.transpose(0, 1).reshape(values.shape)
        return values.t() if ".c_" in name and values.dim() == 2 else values

    return transformers.GPT2LMHeadModel(settings), names, from_ours


@pytest.mark.parametrize(
    ("model", "theirs"),
    [(GPT2, gpt2), (NEOX, gpt_neox), (replace(NEOX, parallel_residual=False, rotary_fraction=1.0), gpt_neox)],
    ids=["GPT-2", "GPT-NeoX", "GPT-NeoX, one after another"],
)
def test_beside_transformers(model, theirs):
    trainer = Trainer(config(model), ALONE)
    decoder = trainer.decoders[0]
    ours = {one.name: one for one in trainer.parameters}
    upstream, names, from_ours = theirs(model)
    pairs = []
    with torch.no_grad():
        for name, parameter in upstream.named_parameters():
            mine = name
            for old, new in names.items():
                mine = mine.replace(old, new)
            pairs.append((name, parameter, ours[mine]))
            parameter.copy_(from_ours(name, ours[mine].local))
    assert len(pairs) == len(ours)
    given = batch(0, config(model))
    tokens, labels = given["tokens"], given["labels"]
    bound = apart(model, LENGTH)
    logits = upstream(tokens).logits
    torch.testing.assert_close(decoder(tokens), logits, rtol=bound, atol=bound * float(logits.detach().abs().max()))
    loss = decoder(tokens, labels=labels)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, expected[None], rtol=bound, atol=0)
    loss.sum().backward()
    expected.backward()
    for name, parameter, one in pairs:
        right = parameter.grad
        # A gradient sums over tokens, and cancels in part.
        assert (from_ours(name, one.gradient) - right).abs().max() <= 4 * bound * right.abs().max(), name


def test_one_norm_for_both_sides():
    settings = config(replace(NEOX, shared_norm=True, num_layers=1))
    shared = Trainer(settings, ALONE)
    two = Trainer(config(replace(NEOX, num_layers=1)), ALONE)
    given = batch(0, settings)
    # The weights of norms begin at 1, so that the models differ in nothing yet.
    assert shared.evaluate(given, 8) == two.evaluate(given, 8)
    assert len(shared.parameters) == len(two.parameters) - 2


@pytest.mark.parametrize("activation", ["relu", "silu", "geglu", "swiglu", "gelu", "gelu_tanh"])
def test_activations(activation):
    from ascend_adapt.native.model.layers import MLP

    model = replace(GATED, activation=activation)
    mlp = MLP(model, TensorParallel.of(ALONE)).double()
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, model.hidden_size, dtype=torch.float64)
    functional = torch.nn.functional
    up = x @ mlp.dense_h_to_4h.weight.t()
    gate = x @ mlp.gate.weight.t() if model.gated else None
    inner = {
        "relu": lambda: functional.relu(up),
        "silu": lambda: functional.silu(up),
        "gelu": lambda: functional.gelu(up),
        "gelu_tanh": lambda: functional.gelu(up, approximate="tanh"),
        "geglu": lambda: functional.gelu(gate) * up,
        "swiglu": lambda: functional.silu(gate) * up,
    }[activation]()
    torch.testing.assert_close(mlp(x), inner @ mlp.dense_4h_to_h.weight.t())


@pytest.mark.parametrize("on_root", [False, True])
def test_where_the_epsilon_of_rmsnorm_is_added(on_root):
    from ascend_adapt.native.model.layers import Norm

    norm = Norm(replace(GATED, norm_eps=0.3, rms_eps_on_root=on_root), TensorParallel.of(ALONE)).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, GATED.hidden_size, dtype=torch.float64)
    mean = x.square().mean(-1, keepdim=True)
    root = mean.sqrt() + 0.3 if on_root else (mean + 0.3).sqrt()
    torch.testing.assert_close(norm(x), x / root * norm.weight, rtol=1e-6, atol=0)
    nothing = torch.zeros(1, GATED.hidden_size, dtype=torch.float64, requires_grad=True)
    norm(nothing).sum().backward()
    assert nothing.grad.isfinite().all()


def test_documents_are_masked_from_each_other_and_positions_restart():
    settings = config(GPT2)
    trainer = Trainer(settings, ALONE)
    decoder = trainer.decoders[0].eval()
    tokens = batch(0, settings)["tokens"][:1]
    half = LENGTH // 2
    masked_out = torch.ones(1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    masked_out[:, half:, :half] = True
    position_ids = torch.arange(half).repeat(2)[None]
    together = decoder(tokens, position_ids=position_ids, masked_out=masked_out)
    each = torch.cat([decoder(tokens[:, :half]), decoder(tokens[:, half:])], 1)
    bound = apart(GPT2, LENGTH) * float(each.detach().abs().max())
    assert (together - each).abs().max() <= bound
    assert (decoder(tokens) - each).abs().max() > 100 * bound


def test_no_rank_builds_more_than_its_stage():
    with torch.device("meta"):
        middle = Decoder(GPT2, TensorParallel.of(ALONE), range(1, 3), first=False, last=False)
    assert {one.name.split(".")[0] + one.name.split(".")[1] for one in placed([middle])} == {"layers1", "layers2"}
