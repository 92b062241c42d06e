"""Two ranks train a tiny GPT-2 with DeepSpeed, one step for each ZeRO stage and dtype, and save checkpoints.

    ascend-run --nproc 2 --device cpu save_by_deepspeed.py FOLDER STAGE:DTYPE[:frozen] ...

Beside each checkpoint, master.pt has the fp32 master weights as DeepSpeed's engine gives them, and config.json is the
model's. One parameter is frozen in those marked so. DeepSpeed has no fp16 on a CPU; here its accelerator says that it
has, so that its own fp16 optimizers write the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param

SIZES = {"vocab_size": 91, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}


def train(folder: Path, stage: int, dtype: str, *, frozen: bool) -> None:
    """Train one step, and save the checkpoint and the master weights."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**SIZES))
    if frozen:
        model.transformer.wpe.weight.requires_grad_(False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        **({dtype: {"enabled": True}} if dtype != "fp32" else {}),
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    ids = torch.arange(8).view(1, 8) + torch.distributed.get_rank()
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(folder)
    trained = {name: safe_get_full_fp32_param(one) for name, one in model.named_parameters() if one.requires_grad}
    if torch.distributed.get_rank() == 0:
        torch.save({name: tensor.clone() for name, tensor in trained.items()}, folder / "master.pt")
        model.config.save_pretrained(folder)


if __name__ == "__main__":
    get_accelerator().is_fp16_supported = lambda: True
    for case in sys.argv[2:]:
        number, kind, *more = case.split(":")
        train(Path(sys.argv[1]) / case.replace(":", "-"), int(number), kind, frozen=bool(more))
