"""How the parameters of other code bases are called here."""

from __future__ import annotations

import re

# Of all of them: no two mean different things by one name.
_NAMES = {
    r"^(module\.|language_model\.)+": "",
    r"^sequential\.": "",
    # Megatron-LM, v2.5 and Megatron-DeepSpeed
    r"^(embedding\.)?word_embeddings\.": "embedding.words.",
    r"^(embedding\.)?position_embeddings\.": "embedding.positions.",
    r"^(encoder|transformer)\.layers\.": "layers.",
    r"^(encoder|transformer)\.final_layernorm\.": "final_norm.",
    # Megatron-core
    r"^decoder\.layers\.": "layers.",
    r"^decoder\.final_layernorm\.": "final_norm.",
    r"^output_layer\.": "head.",
    r"\.pre_mlp_layernorm\.": ".post_attention_norm.",
    r"\.self_attention\.linear_qkv\.": ".attention.query_key_value.",
    r"\.self_attention\.linear_proj\.": ".attention.dense.",
    r"\.mlp\.linear_fc1\.": ".mlp.dense_h_to_4h.",
    r"\.mlp\.linear_fc2\.": ".mlp.dense_4h_to_h.",
    # GPT-NeoX: a sequence in which the layers begin at 2
    r"^0\.word_embeddings\.": "embedding.words.",
    r"^0\.position_embeddings\.": "embedding.positions.",
    r"^\d+\.norm\.": "final_norm.",
    r"^\d+\.final_linear\.": "head.",
    r"^(\d+)\.": lambda found: f"layers.{int(found[1]) - 2}.",
    r"\.mlp\.linear1\.": ".mlp.dense_h_to_4h.",
    r"\.mlp\.linear2\.": ".mlp.dense_4h_to_h.",
    # both
    r"\.self_attention\.": ".attention.",
    r"\.input_layernorm\.": ".input_norm.",
    r"\.post_attention_layernorm\.": ".post_attention_norm.",
}


def own_name(name: str) -> str:
    """Return our name of a parameter of Megatron-LM, Megatron-DeepSpeed, Megatron-core or GPT-NeoX."""
    for theirs, ours in _NAMES.items():
        name = re.sub(theirs, ours, name)
    return name
