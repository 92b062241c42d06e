"""Programs that fine-tune or distil language models."""

from __future__ import annotations

import json
from pathlib import Path

from own_scripts import local_data
from own_scripts.hugging_face_examples import CHATS, models
from own_scripts.program import program, words_of
from upstream_job import Place

IN_BF16 = {"loss": r"'loss': '?([0-9.]+)", "bound": 1e-2}
SFT = words_of(
    "--model_name_or_path {shared}/qwen2 --dataset_name {shared}/chats --learning_rate 4.0e-5 --max_steps 4 --packing "
    "--max_length 128 --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --gradient_checkpointing "
    "--bf16 true --output_dir out --logging_steps 1 --save_strategy no --report_to none"
)
DISTILLATION = """\
project_name: tiny
model: {model}
output_path: out
use_flash_attention: true
sequence_length: 96
dataset: {{train_dataset: {{repo_id: {data}, split: train}}, seed: 42}}
loss_functions:
- {{function: cross_entropy, weight: 0.25}}
- {{function: kl, weight: 0.25, temperature: 2.0}}
- {{function: hs_cosine, weight: 0.5}}
layer_mapping: all
teacher:
  kind: hf
  path: {model}
  kwargs: {{attn_implementation: flash_attention_2, torch_dtype: bfloat16}}
training_args:
  packing: true
  max_steps: 4
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 2
  logging_steps: 1
  learning_rate: 1.0e-5
  lr_scheduler_type: cosine
  bf16: true
  max_grad_norm: 0.5
  optim: adamw_torch
  gradient_checkpointing: true
  gradient_checkpointing_kwargs: {{use_reentrant: false}}
  report_to: none
  save_strategy: "no"
"""


def distillation(place: Place, code: Path) -> None:
    """Write a tiny model, chats, and DistillKit's configuration with the options of its examples."""
    models("llama")(place, code)
    options = DISTILLATION.format(model=place.shared / "llama", data=place.shared / "chats")
    (code / "tiny.yml").write_text(options)


def firefly(place: Place, code: Path) -> None:
    """Write conversations and arguments as Firefly reads them."""
    models("qwen2")(place, code)
    rows = [
        {"conversation_id": number, "conversation": [{"human": human["content"], "assistant": reply["content"]}]}
        for number, (human, reply) in enumerate(chat["messages"] for chat in CHATS)
    ]
    local_data.write_jsonl(code / "conversations.jsonl", rows)
    options = json.loads((code / "train_args/sft/lora/qwen1.5-7b-sft-lora.json").read_text())
    options |= {"output_dir": "out", "model_name_or_path": str(place.shared / "qwen2"), "template_name": "default"}
    options |= {"train_file": "conversations.jsonl", "max_seq_length": 96, "max_steps": 4, "logging_steps": 1}
    options |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "optim": "adamw_torch"}
    options |= {"warmup_steps": 1, "lora_dropout": 0.0, "lora_rank": 8, "fp16": False, "bf16": True}
    (code / "tiny.json").write_text(json.dumps(options))


JOBS = (
    program(
        "alignment-handbook-sft",
        ["scripts/sft.py", *SFT],
        code_base="alignment-handbook",
        prepare=models("qwen2"),
        path="{code}/src",
        **IN_BF16,
    ),
    program(
        "open-r1-sft",
        ["src/open_r1/sft.py", *SFT],
        code_base="open-r1",
        prepare=models("qwen2"),
        path="{code}/src",
        **IN_BF16,
    ),
    program(
        "DistillKit",
        ["-m", "distillkit.main", "tiny.yml"],
        code_base="DistillKit",
        prepare=distillation,
        path="{code}",
        **IN_BF16,
    ),
    program(
        "Firefly-lora",
        words_of("train.py --train_args_file tiny.json"),
        code_base="Firefly",
        prepare=firefly,
        **IN_BF16,
    ),
)
