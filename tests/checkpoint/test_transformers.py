"""Hugging Face checkpoints beside transformers' own models: nothing missing, nothing unexpected, the same logits."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.convert.native_logits import native_logits
from ascend_adapt.errors import CheckpointError

transformers = pytest.importorskip("transformers")
TOKENS = torch.arange(32).view(2, 16) * 7 % 90
BOUND = 1e-5
"""Of logits whose largest is about 10: what fp32 leaves after four sums of 32 terms in each of two layers."""
SHAPES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
THEIRS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=90, n_positions=16, n_embd=32, n_layer=2, n_head=4),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(vocab_size=90, max_position_embeddings=16, **SHAPES),
    "llama": lambda: transformers.LlamaConfig(vocab_size=90, num_key_value_heads=2, **SHAPES),
    "mistral": lambda: transformers.MistralConfig(
        vocab_size=90, num_key_value_heads=2, head_dim=16, sliding_window=24, **SHAPES
    ),
    "qwen2": lambda: transformers.Qwen2Config(vocab_size=90, num_key_value_heads=2, **SHAPES),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_gives_the_native_models_logits(tmp_path, name):
    model, state = MODELS[name], state_of(MODELS[name])
    hugging_face.write(output_of(model, state), new_folder(tmp_path / "hf"))
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ours = native_logits(model, state.__getitem__, TOKENS)
    with torch.no_grad():
        apart = (theirs.eval()(TOKENS).logits - ours).abs().max() / ours.abs().max()
    print(f"{name}: {apart:.1e}")
    assert apart < BOUND


@pytest.mark.parametrize("name", THEIRS)
def test_what_transformers_saves_is_read(tmp_path, name):
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(THEIRS[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    source = open_checkpoint(tmp_path)
    ours = native_logits(source.model, source.read, TOKENS)
    with torch.no_grad():
        apart = (theirs(TOKENS).logits - ours).abs().max() / ours.abs().max()
    assert apart < BOUND
    if name == "mistral":
        assert source.model.max_positions == 24
        assert source.notes == ("positions end at 24, where the sliding window would take effect",)


def test_shards_have_an_index_and_old_names_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face, "SHARD_BYTES", 20_000)
    model, state = MODELS["gpt2"], state_of(MODELS["gpt2"])
    hugging_face.write(output_of(model, state), new_folder(tmp_path / "hf"))
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    source = open_checkpoint(tmp_path / "hf")
    assert all(torch.equal(source.read(name), tensor) for name, tensor in state.items())
    # As OpenAI's gpt2 is on the hub: without a prefix, with masks, and one file of torch.save.
    old = new_folder(tmp_path / "old")
    names = {key.removeprefix("transformer."): file for key, file in index["weight_map"].items()}
    read = hugging_face.StoredTensors(tmp_path / "hf")
    content = {name: read[f"transformer.{name}"] for name in names}
    torch.save({**content, "h.0.attn.bias": torch.ones(1, 1, 16, 16)}, old / "pytorch_model.bin")
    (old / "config.json").write_text((tmp_path / "hf/config.json").read_text())
    source = open_checkpoint(old)
    assert all(torch.equal(source.read(name), tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rotary embedding scaled by 'yarn'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu', expected 'silu'"),
        ({"model_type": "mamba"}, "model_type 'mamba', expected one of gpt2, gpt_neox, llama"),
        ({"hidden_size": 64}, r"lm_head.weight is \[96, 32\]|embed_tokens.weight is \[96, 32\], expected \[96, 64\]"),
    ],
)
def test_arithmetic_that_the_native_model_lacks_is_refused(tmp_path, change, refusal):
    model = MODELS["llama"]
    hugging_face.write(output_of(model, state_of(model)), new_folder(tmp_path / "hf"))
    config = tmp_path / "hf/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(CheckpointError, match=refusal):
        open_checkpoint(tmp_path / "hf").read("embedding.words.weight")
