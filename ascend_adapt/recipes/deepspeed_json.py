"""DeepSpeed's configuration, or a dialect's copy of its parts, as far as it changes what is trained."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_adapt.errors import ConfigError
from ascend_adapt.native.config import LossScale

# Sections and numbers that a recipe reads; what changes no number of a step; what is known, and not built.
_USED = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping fp16 bf16
    zero_optimization"""
_IGNORED = """
    activation_checkpointing aio checkpoint comms_logger communication_data_type csv_monitor data_types
    disable_allgather dump_state flops_profiler gradient_predivide_factor memory_breakdown monitor_config optimizer
    prescale_gradients scheduler seq_parallel_communication_data_type steps_per_print tensorboard timers
    use_node_local_storage wall_clock_breakdown wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"""
_REFUSED = """
    amp autotuning compression_training curriculum_learning data_efficiency eigenvalue elasticity hybrid_engine moe
    pipeline progressive_layer_drop quantize_training sparse_attention sparse_gradients"""
_ZERO_REFUSED = "zero_quantized_weights zero_quantized_gradients zero_hpz_partition_size mics_shard_size"


def read_file(path: str) -> dict[str, Any]:
    """Return the content of a DeepSpeed JSON file.

    Raises:
        ConfigError: it cannot be read, is no JSON, or has a key that is unknown or not built.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"deepspeed_config {path!r}: {error.strerror} — correct the path") from error
    except ValueError as error:
        raise ConfigError(f"deepspeed_config {path!r}: is no JSON ({error}) — correct it") from error
    if not isinstance(content, dict):
        raise ConfigError(f"deepspeed_config {path!r}: is a {type(content).__name__}, expected an object — correct it")
    check(content, f"deepspeed_config {path!r}")
    return content


def check(content: Mapping[str, Any], where: str) -> None:
    """Check the names of a configuration.

    Raises:
        ConfigError: one that is unknown, or switches something on that is not built.
    """
    refused, known = _REFUSED.split(), f"{_USED} {_IGNORED} {_REFUSED}".split()
    for name, value in content.items():
        if name in refused and is_on(value):
            raise ConfigError(
                f"{where}: {name} is switched on, and the native trainer has nothing of the kind — leave it out, or "
                "run DeepSpeed itself"
            )
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            step = f"did you mean {close[0]}?" if close else "correct it or leave it out"
            raise ConfigError(f"{where}: {name} is unknown — {step}")


def without_effect() -> list[str]:
    """Return the names that change no number of a step, or may be there switched off."""
    return [*_IGNORED.split(), *_REFUSED.split()]


def is_on(value: Any) -> bool:
    """Return whether a section, or a flag, asks for something."""
    if isinstance(value, Mapping):
        return bool(value.get("enabled", bool(value)))
    return bool(value)


def zero_stage(section: Mapping[str, Any] | None) -> tuple[int, bool, bool]:
    """Return the ZeRO stage, and whether optimizer states and parameters are kept in host memory.

    Raises:
        ConfigError: a stage that is none, or a part that is not built.
    """
    section = section or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"zero_optimization: {section!r}, expected names and values — correct it")
    stage = section.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ConfigError(f"zero_optimization.stage: {stage!r}, expected 0, 1, 2 or 3 — correct it")
    for name in _ZERO_REFUSED.split():
        if section.get(name) not in (None, False, 1, -1):
            raise ConfigError(
                f"zero_optimization.{name}: {section[name]!r}, and the native trainer has nothing of the kind — "
                "leave it out, or run DeepSpeed itself"
            )
    optimizer = bool(section.get("cpu_offload")) or _is_offloaded(section, "offload_optimizer")
    parameters = bool(section.get("cpu_offload_params")) or _is_offloaded(section, "offload_param")
    return int(stage), optimizer, parameters


def _is_offloaded(section: Mapping[str, Any], name: str) -> bool:
    offload = section.get(name) or {}
    where = offload.get("device", "none") if isinstance(offload, Mapping) else offload
    if where not in ("none", "cpu", None):
        raise ConfigError(f"zero_optimization.{name}.device: {where!r}, expected 'cpu' or 'none' — choose one of them")
    return bool(where == "cpu")


def loss_scale(section: Mapping[str, Any]) -> LossScale:
    """Return fp16's loss scale as DeepSpeed reads its section; 0 is a scale that moves.

    Source of the defaults: DeepSpeed@edaa7221 deepspeed/runtime/fp16.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"fp16: {section!r}, expected names and values — correct it")
    for name in ("loss_scale", "initial_scale_power", "min_loss_scale", "loss_scale_window", "hysteresis"):
        value = section.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ConfigError(f"fp16.{name}: {value!r}, expected a number, at least 0 — correct it")
    fixed = section.get("loss_scale", 0)
    return LossScale(
        fixed=float(fixed) if fixed else None,
        initial=float(2 ** section.get("initial_scale_power", 16)),
        minimum=float(section.get("min_loss_scale", section.get("min_scale", 1))),
        window=int(section.get("loss_scale_window", 1000)),
        hysteresis=int(section.get("hysteresis", 2)),
        rule="deepspeed",
    )
