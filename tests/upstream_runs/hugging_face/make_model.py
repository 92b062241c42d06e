"""Write a model and its tokenizer to a folder: python make_model.py gpt2|gpt_neox|llama FOLDER.

It is tiny, or has the vocabulary of GPT-2 and what follows FOLDER: LAYERS HIDDEN HEADS LENGTH.

The model is made of its configuration, with the heads, norms and positions of the real ones; training loads the
folder as it would load a checkpoint of the Hub.
"""

import sys

from text import library_text, train_tokenizer
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, set_seed

TINY = (2, 64, 4, 128)
VOCABULARY = 50257
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def main(kind: str, folder: str, *sizes: str) -> None:
    tokenizer = train_tokenizer(library_text())
    vocabulary = VOCABULARY if sizes else len(tokenizer)
    layers, hidden, heads, length = map(int, sizes or TINY)
    common = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
        "vocab_size": vocabulary,
    }
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=vocabulary, n_layer=layers, n_embd=hidden, n_head=heads, n_positions=length, **NO_DROPOUT
        )
    elif kind == "gpt_neox":
        config = GPTNeoXConfig(intermediate_size=4 * hidden, **common)
    else:
        config = LlamaConfig(intermediate_size=hidden * 43 // 16, num_key_value_heads=heads // 2, **common)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    set_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
