"""Train a GPT-2 with Hugging Face's Trainer, as for NVIDIA GPUs. Nothing here is specific to Ascend NPUs."""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--text", type=Path, default=LICENSE, help="text to train on (default: this repository's LICENSE)")
parser.add_argument("--output", default="runs/trainer", help="folder for checkpoints (default: %(default)s)")
parser.add_argument("--tiny", action="store_true", help="three steps of a model of two layers")
args = parser.parse_args()
layers, width, length, steps = (2, 32, 64, 3) if args.tiny else (12, 768, 512, 200)

# The tokens are the bytes of the text, so that nothing is downloaded.
tokens = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
windows = [{"input_ids": window, "labels": window} for window in tokens.split(length) if len(window) == length]

config = GPT2Config(
    vocab_size=256, n_layer=layers, n_head=4, n_embd=width, n_positions=length, bos_token_id=0, eos_token_id=0
)
training = TrainingArguments(
    output_dir=args.output,
    max_steps=steps,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    bf16=True,
    logging_steps=1 if args.tiny else 10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    seed=1234,
)
torch.manual_seed(1234)
Trainer(model=GPT2LMHeadModel(config), args=training, train_dataset=windows).train()
