"""Finetune a causal language model with DeepSpeed ZeRO-3, as for NVIDIA GPUs. Nothing is specific to Ascend NPUs."""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", help="folder or name of a Hugging Face checkpoint")
parser.add_argument("--tokens", type=Path, help="token ids, as torch.save writes them")
parser.add_argument("--output", default="runs/zero3", help="folder for checkpoints (default: %(default)s)")
parser.add_argument(
    "--deepspeed",
    default=str(Path(__file__).with_name("zero3.json")),
    help="DeepSpeed configuration (default: %(default)s)",
)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--tiny", action="store_true", help="three steps of a random GPT-2 of two layers, on bytes")
parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
args = parser.parse_args()
if not args.tiny and not (args.model and args.tokens):
    parser.error("--model and --tokens: missing, expected a checkpoint and its token ids — or use --tiny")

# Created before the model, so that from_pretrained shards the weights while it loads them.
training = TrainingArguments(
    output_dir=args.output,
    deepspeed=args.deepspeed,
    max_steps=3 if args.tiny else args.steps,
    per_device_train_batch_size=2,
    learning_rate=1e-3 if args.tiny else 1e-5,
    bf16=True,
    logging_steps=1,
    save_strategy="no" if args.tiny else "steps",
    report_to="none",
    disable_tqdm=True,
    seed=1234,
)
torch.manual_seed(1234)
if args.tiny:
    tokens = torch.frombuffer(
        bytearray((Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()), dtype=torch.uint8
    ).long()
    sizes = {"vocab_size": 256, "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}
    length, model = 64, GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
else:
    tokens = torch.load(args.tokens)
    length, model = 1024, AutoModelForCausalLM.from_pretrained(args.model)
windows = [{"input_ids": window, "labels": window} for window in tokens.split(length) if len(window) == length]
Trainer(model=model, args=training, train_dataset=windows).train()
