"""Write a tiny Hugging Face model with random weights and its tokenizer: python make_model.py KIND FOLDER."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import library_text
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    ViTConfig,
    set_seed,
)

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|endoftext|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def main(kind: str, folder: str) -> None:
    """Write the model and, but for pictures, the tokenizer."""
    set_seed(1)
    if kind == "vit":
        from transformers import ViTImageProcessor

        sizes = {"image_size": 32, "patch_size": 8, "intermediate_size": 128}
        config = ViTConfig(**SIZES, **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        AutoModelForImageClassification.from_config(config).save_pretrained(folder)
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        return
    words = library_text.write_tokenizer(Path(folder) / "words")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(words / "tokenizer.json"),
        bos_token=library_text.END,
        eos_token=library_text.END,
        unk_token=library_text.END,
        model_max_length=128,
    )
    tokenizer.add_special_tokens(
        {"pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    )
    tokenizer.chat_template = CHAT
    common = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    common |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if kind == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=128, **dropout, **common)
    elif kind == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=128, **dropout, **common)
    else:
        made = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind]
        config = made(**SIZES, intermediate_size=172, num_key_value_heads=2, max_position_embeddings=256, **common)
    model = (AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM).from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
