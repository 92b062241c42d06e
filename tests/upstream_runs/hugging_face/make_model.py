"""Write a tiny model and its tokenizer to a folder: python make_model.py gpt2|gpt_neox|llama FOLDER.

The model is made of its configuration, with the heads, norms and positions of the real ones; training loads the
folder as it would load a checkpoint of the Hub.
"""

import sys

from text import library_text, train_tokenizer
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, set_seed

COMMON = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def main(kind: str, folder: str) -> None:
    tokenizer = train_tokenizer(library_text())
    vocabulary = len(tokenizer)
    if kind == "gpt2":
        config = GPT2Config(vocab_size=vocabulary, n_layer=2, n_embd=64, n_head=4, n_positions=128, **NO_DROPOUT)
    elif kind == "gpt_neox":
        config = GPTNeoXConfig(vocab_size=vocabulary, intermediate_size=256, **COMMON)
    else:
        config = LlamaConfig(vocab_size=vocabulary, intermediate_size=172, num_key_value_heads=2, **COMMON)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    set_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
