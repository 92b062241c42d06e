"""Tiny models made of their configurations, with the heads, norms and positions of the real ones."""

from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, PreTrainedModel

COMMON = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def make_model(kind: str, vocabulary: int) -> PreTrainedModel:
    """Return a model with random weights; the same ones for the same seed."""
    if kind == "gpt2":
        config = GPT2Config(vocab_size=vocabulary, n_layer=2, n_embd=64, n_head=4, n_positions=128, **NO_DROPOUT)
    elif kind == "gpt_neox":
        config = GPTNeoXConfig(vocab_size=vocabulary, intermediate_size=256, **COMMON)
    else:
        config = LlamaConfig(vocab_size=vocabulary, intermediate_size=172, num_key_value_heads=2, **COMMON)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    return AutoModelForCausalLM.from_config(config)
