"""Hugging Face transformers, accelerate and peft, as installed: Trainer scripts, and a loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from upstream_job import Place, UpstreamJob

from ascend_adapt.emulation import wheel

HERE = Path(__file__).parent
STEPS = 6
MODELS = ("gpt2", "gpt_neox", "llama")


def model_folder(place: Place, model: str) -> str:
    """Return the folder of a tiny model and its tokenizer, made the first time it is asked for."""
    sizes = asdict(place.model) if place.model else {}
    options = [str(sizes[name]) for name in ("layers", "hidden", "heads", "length") if sizes]
    folder = place.shared / "-".join([model, *options])
    if not (folder / "tokenizer.json").exists():
        subprocess.run([sys.executable, str(HERE / "make_model.py"), model, str(folder), *options], check=True)
    return str(folder)


def trainer(place: Place, model: str) -> list[str]:
    """Return a Trainer script and what a user gives it."""
    of_place = place.model
    sizes = {"length": of_place.length, "max_steps": of_place.steps} if of_place else {"max_steps": STEPS}
    flags = {
        "model": model_folder(place, model),
        "output_dir": str(place.folder / "out"),
        **sizes,
        "warmup_steps": 2,
        "per_device_train_batch_size": of_place.micro_batch if of_place else 4,
        "learning_rate": 3e-4 if of_place else 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [str(HERE / "train.py"), *words, *(["--bf16"] if place.dtype == "bfloat16" else [])]


def zero(place: Place, model: str, stage: int) -> list[str]:
    """Return a Trainer script with DeepSpeed and an optimizer of DeepSpeed's."""
    adamw = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    warmup = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
    optimizer = {"type": "AdamW", "params": adamw}
    reported = {
        **deepspeed_configuration(stage),
        "optimizer": optimizer,
        "scheduler": {"type": "WarmupLR", "params": warmup},
    }
    return [*trainer(place, model), "--deepspeed", written(place, reported)]


def lora(place: Place, stage: int) -> list[str]:
    """Return a Trainer script that trains LoRA adapters with DeepSpeed, and an optimizer of the Trainer's."""
    return [*trainer(place, "llama"), "--lora", "--deepspeed", written(place, deepspeed_configuration(stage))]


def written(place: Place, configuration: Mapping[str, object]) -> str:
    """Return the file that a configuration of DeepSpeed is in."""
    path = place.folder / "ds.json"
    path.write_text(json.dumps(configuration, indent=1))
    return str(path)


def deepspeed_configuration(stage: int) -> dict[str, object]:
    """A ZeRO configuration as the documentation of transformers has it: "auto" wherever the Trainer knows the value."""
    zero: dict[str, object] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def accelerate(place: Place, *options: str) -> list[str]:
    """Return `accelerate launch` of a training loop; two jobs at once must not meet at its default port."""
    script = [str(HERE / "loop.py"), "--model", model_folder(place, "llama"), "--output", str(place.folder / "out")]
    precision = "bf16" if place.dtype == "bfloat16" else "no"
    ours = ["--mixed_precision", precision, "--main_process_port", "0", *options]
    return [sys.executable, "-m", "accelerate.commands.launch", *ours, *script]


def by_configuration(place: Place) -> list[str]:
    """Return `accelerate launch` with the file that `accelerate config` writes for two GPUs and DeepSpeed ZeRO-3."""
    path = place.folder / "accelerate.yaml"
    reported = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True, "zero3_save_16bit_model": True},
        "num_machines": 1,
        "num_processes": 2,
        "machine_rank": 0,
        "use_cpu": False,
    }
    path.write_text(yaml.safe_dump(reported))
    return accelerate(place, "--config_file", str(path))


def multi_gpu(place: Place) -> Sequence[str]:
    """Return `accelerate launch` with the flags of two GPUs."""
    return accelerate(place, "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--dynamo_backend", "no")


def torch_npu(place: Place) -> str:
    """Return the folder of an unpacked torch_npu for the installed torch, without the CANN that it needs."""
    environ = {name: value for name, value in os.environ.items() if name != "ASCEND_HOME_PATH"}
    return str(wheel.for_installed_torch(environ).site)


# The Trainer prints four digits, and the loop six. It refuses --bf16 on a CPU without --use_cpu.
TRAINER = {"loss": r"'loss': '?([0-9.]+)", "bound": 2e-4, "float32_only": ("cpu",), "any_model": True}
LORA = {**TRAINER, "needs": ("peft",)}
JOBS = (
    *(
        UpstreamJob(f"{model}-zero{stage}", lambda place, m=model, s=stage: zero(place, m, s), **TRAINER)
        for model in MODELS
        for stage in (2, 3)
    ),
    UpstreamJob("llama-ddp", lambda place: trainer(place, "llama"), **TRAINER),
    # An image for NPUs on a machine that has none.
    UpstreamJob(
        "llama-ddp-torch_npu-without-cann",
        lambda place: trainer(place, "llama"),
        devices=("cpu", "cuda"),
        path=torch_npu,
        **TRAINER,
    ),
    UpstreamJob("lora-zero2", lambda place: lora(place, 2), **LORA),
    UpstreamJob("lora-zero3", lambda place: lora(place, 3), **LORA),
    UpstreamJob("accelerate-config-zero3", by_configuration),
    UpstreamJob("accelerate-flags-ddp", multi_gpu),
)
