"""Hugging Face transformers, accelerate and peft, as installed: Trainer scripts with DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from upstream_job import Place, UpstreamJob

HERE = Path(__file__).parent
STEPS = 6
LOSS = r"'loss': '?([0-9.]+)"
# The Trainer prints four digits.
BOUND = {"loss": LOSS, "bound": 1e-4}


def deepspeed_configuration(stage: int) -> dict[str, object]:
    """A ZeRO configuration as the documentation of transformers has it: "auto" wherever the Trainer knows the value."""
    zero: dict[str, object] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    adamw = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    return {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": adamw},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
        },
        "zero_optimization": zero,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def trainer_arguments(place: Place, model: str) -> list[str]:
    """What a user gives train.py."""
    flags = {
        "model": model,
        "output_dir": str(place.folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return words + (["--bf16"] if place.dtype == "bfloat16" else [])


def zero(model: str, stage: int) -> Callable[[Place], Sequence[str]]:
    """Return the command of a Trainer script with DeepSpeed."""

    def command(place: Place) -> Sequence[str]:
        path = place.folder / "ds.json"
        path.write_text(json.dumps(deepspeed_configuration(stage), indent=1))
        return [str(HERE / "train.py"), *trainer_arguments(place, model), "--deepspeed", str(path)]

    return command


JOBS = tuple(
    UpstreamJob(f"{model}-zero{stage}", zero(model, stage), **BOUND)
    for model in ("gpt2", "gpt_neox", "llama")
    for stage in (2, 3)
)
