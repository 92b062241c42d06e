"""attn_implementation="flash_attention_2" on a CPU, as scripts written for GPUs request it."""

from __future__ import annotations

import pytest
import torch

import ascend_adapt


@pytest.fixture
def config():
    from transformers import LlamaConfig

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=32, **sizes)


def made(config, attention):
    from transformers import AutoModelForCausalLM, set_seed

    set_seed(1)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def test_a_model_computes_flash_attention_with_sdpa(config):
    with pytest.raises(ImportError, match="FlashAttention2"):
        made(config, "flash_attention_2")
    tokens = torch.arange(8)[None]
    with ascend_adapt.enabled(device="cpu"):
        model = made(config, "flash_attention_2")
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(model(tokens).logits, made(config, "sdpa")(tokens).logits)
        model.set_attn_implementation("eager")
        assert model.config._attn_implementation == "eager"
        model.set_attn_implementation("flash_attention_2")
        assert model.config._attn_implementation == "sdpa"


def test_a_model_without_sdpa_computes_it_eagerly(config, monkeypatch):
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_supports_sdpa", False)
    with ascend_adapt.enabled(device="cpu"):
        assert made(config, "flash_attention_2").config._attn_implementation == "eager"


def test_it_is_reported_once(config, caplog):
    from ascend_adapt_plugins.hf import flash_attention

    flash_attention._report_once.cache_clear()
    with ascend_adapt.enabled(device="cpu"):
        made(config, "flash_attention_2"), made(config, "flash_attention_2")
    assert [one for one in caplog.messages if "flash_attention_2" in one] == [
        "ascend_adapt: attn_implementation='flash_attention_2' is computed as 'sdpa' on a CPU"
    ]


@pytest.mark.parametrize(("has_sdpa", "used"), [(True, "sdpa"), (False, "eager")])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_the_check_of_an_older_transformers_chooses_torchs_attention(config, device, has_sdpa, used):
    from ascend_adapt_plugins.hf import flash_attention

    class Model:
        _supports_sdpa = has_sdpa

        @classmethod
        def check(cls, config, torch_dtype=None, device_map=None, check_device_map=True, hard_check_only=False):
            raise ImportError("FlashAttention2 has been toggled on")

    patch = getattr(flash_attention, f"flash_attention_check_on_{device}")
    config._attn_implementation = "flash_attention_2"
    assert patch.function(Model.check, Model, (config,), {"hard_check_only": False}) is config
    assert config._attn_implementation == used
