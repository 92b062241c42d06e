"""Write a tiny Hugging Face model with random weights and its tokenizer: python make_model.py KIND FOLDER."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import library_text
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    BertConfig,
    CLIPTextConfig,
    CLIPTextModel,
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


def stable_diffusion(folder: Path) -> None:
    """Write the parts of a tiny Stable Diffusion, with CLIP's tokenizer for the 256 bytes."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    config = CLIPTextConfig(**SIZES, vocab_size=len(words), intermediate_size=64, max_position_embeddings=16)
    CLIPTextModel(config).save_pretrained(folder / "text_encoder")
    AutoencoderKL(block_out_channels=(32,), norm_num_groups=8).save_pretrained(folder / "vae")
    UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=64,
        attention_head_dim=4,
        norm_num_groups=8,
    ).save_pretrained(folder / "unet")
    DDPMScheduler().save_pretrained(folder / "scheduler")
    parts = {
        **dict.fromkeys(("safety_checker", "feature_extractor", "image_encoder"), [None, None]),
        "scheduler": ["diffusers", "DDPMScheduler"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
    }
    index = {"_class_name": "StableDiffusionPipeline", "requires_safety_checker": False, **parts}
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")


def main(kind: str, folder: str) -> None:
    """Write the model and, but for pictures, the tokenizer."""
    set_seed(1)
    if kind == "stable-diffusion":
        stable_diffusion(Path(folder))
        return
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
