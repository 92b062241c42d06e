"""DeepSpeed configuration, or a dialect's copy of parts of it, limited to the keys that affect training."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.config.train_config import LossScale
from ascend_adapt.errors import ConfigError

# Keys that a recipe reads; keys without effect on a step; known keys of unsupported features.
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
_ZERO_REFUSED = """
    mics_hierarchical_params_gather mics_shard_size zenflow zero_hpz_partition_size zero_quantized_gradients
    zero_quantized_nontrainable_weights zero_quantized_weights zeropp_loco_param"""

# Keys of each section, in DeepSpeed 0.4 to 0.19 and in GPT-NeoX's files: those that are read, those without effect on
# the numbers of a step, and those that may be present if they are disabled.
_SECTIONS = {
    "zero_optimization": f"""
        stage cpu_offload cpu_offload_param cpu_offload_params offload_optimizer offload_param
        allgather_bucket_size allgather_partitions allgather_sequential allgather_size compute_grad_norm
        contiguous_gradients cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
        gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
        log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear
        model_persistence_threshold module_granularity_threshold overlap_comm override_module_apply parameter_alignment
        param_persistence_threshold pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size reduce_scatter
        round_robin_gradients save_muon_momentum_buffer_in_memory stage3_allgather_sequential
        stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters
        stage3_max_reuse_distance stage3_model_persistence_threshold stage3_module_granularity_threshold
        stage3_param_persistence_threshold stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params
        sub_group_size use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce {_ZERO_REFUSED}""",
    "fp16": """
        enabled type loss_scale initial_scale_power min_loss_scale min_scale loss_scale_window hysteresis
        auto_cast fp16 consecutive_hysteresis fp16_master_weights_and_grads""",
    "bf16": """
        enabled auto_cast bf16 check_grad_overflow hysteresis immediate_grad_update initial_scale_power loss_scale
        loss_scale_window min_loss_scale bf16_master_weights_and_grads bf16_optimizer_states""",
}
# The string "false" would be truthy.
_FLAGS = ("enabled", "cpu_offload", "cpu_offload_param", "cpu_offload_params")
_OF_16_BITS_REFUSED = """
    consecutive_hysteresis fp16_master_weights_and_grads bf16_master_weights_and_grads bf16_optimizer_states"""


def read_file(path: str) -> dict[str, Any]:
    """Return the content of a DeepSpeed JSON file.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or has a key that is unknown or not supported.
    """
    try:
        content = json.loads(regular_files.read_text(path))
    except OSError as error:
        raise ConfigError(f"deepspeed_config {path!r}: {error.strerror} — correct the path") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"deepspeed_config {path!r}: is not JSON ({error}) — correct it") from error
    if not isinstance(content, dict):
        raise ConfigError(f"deepspeed_config {path!r}: is a {type(content).__name__}, expected an object — correct it")
    check(content, f"deepspeed_config {path!r}")
    return content


def check(content: Mapping[str, Any], where: str) -> None:
    """Check the keys of a configuration.

    Raises:
        ConfigError: a key is unknown, or enables a feature that is not supported.
    """
    refused, known = _REFUSED.split(), f"{_USED} {_IGNORED} {_REFUSED}".split()
    for name, value in content.items():
        if name in refused and is_on(value):
            raise ConfigError(
                f"{where}: {name} is enabled, but the native trainer does not support it — omit it, or run DeepSpeed "
                "itself"
            )
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            step = f"did you mean {close[0]}?" if close else "correct it or leave it out"
            raise ConfigError(f"{where}: {name} is unknown — {step}")
        if name in _SECTIONS:
            section(name, value)


def section(name: str, content: Any) -> Mapping[str, Any]:
    """Return ``zero_optimization``, ``fp16`` or ``bf16`` with its keys checked; a missing section is empty.

    Raises:
        ConfigError: the section is not an object, or a key is unknown or enables a feature that is not supported.
    """
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: {content!r}, expected names and values — correct it")
    known = _SECTIONS[name].split()
    refused = (_ZERO_REFUSED if name == "zero_optimization" else _OF_16_BITS_REFUSED).split()
    for one, value in content.items():
        if one not in known:
            close = difflib.get_close_matches(str(one), known, 1)
            step = f"did you mean {close[0]}?" if close else "correct it or leave it out"
            raise ConfigError(f"{name}.{one}: is unknown — {step}")
        if one in _FLAGS and value not in (True, False, None):
            raise ConfigError(f"{name}.{one}: {value!r}, expected true or false — correct it")
        if one == "type" and value not in ("fp16", "bfloat16", None):
            raise ConfigError(f"{name}.type: {value!r}, expected 'fp16' or 'bfloat16' — choose one of them")
        # A size of 1 or -1 disables a feature, and True == 1.
        if one in refused and (value is True or value not in (None, False, 1, -1)):
            raise ConfigError(
                f"{name}.{one}: {value!r}, but the native trainer does not support it — omit it, or run DeepSpeed "
                "itself"
            )
    return content


def without_effect() -> list[str]:
    """Return the keys that have no effect on a step, or may be present if they are disabled."""
    return [*_IGNORED.split(), *_REFUSED.split()]


def is_on(value: Any) -> bool:
    """Return whether a section or a flag is enabled."""
    if isinstance(value, Mapping):
        return bool(value.get("enabled", bool(value)))
    return bool(value)


def zero_stage(content: Mapping[str, Any] | None) -> tuple[int, bool]:
    """ZeRO stage, and whether optimizer states or parameters are offloaded; this trainer offloads both or neither.

    Raises:
        ConfigError: the stage is unknown, or a feature is not supported.
    """
    zero = section("zero_optimization", content)
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ConfigError(f"zero_optimization.stage: {stage!r}, expected 0, 1, 2 or 3 — correct it")
    optimizer = bool(zero.get("cpu_offload")) or _is_offloaded(zero, "offload_optimizer")
    parameters = any(zero.get(name) for name in ("cpu_offload_param", "cpu_offload_params"))
    parameters = parameters or _is_offloaded(zero, "offload_param")
    return int(stage), optimizer or parameters


def _is_offloaded(zero: Mapping[str, Any], name: str) -> bool:
    offload = zero.get(name) or {}
    where = offload.get("device", "none") if isinstance(offload, Mapping) else offload
    if where not in ("none", "cpu", None):
        raise ConfigError(f"zero_optimization.{name}.device: {where!r}, expected 'cpu' or 'none' — choose one of them")
    return bool(where == "cpu")


def loss_scale(content: Mapping[str, Any]) -> LossScale:
    """Return the loss scale of section fp16 as DeepSpeed reads it; 0 is dynamic loss scaling.

    Source of the defaults: DeepSpeed@edaa7221 deepspeed/runtime/fp16.
    """
    fp16 = section("fp16", content)
    for name in ("loss_scale", "initial_scale_power", "min_loss_scale", "loss_scale_window", "hysteresis"):
        value = fp16.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ConfigError(f"fp16.{name}: {value!r}, expected a number, at least 0 — correct it")
    power = fp16.get("initial_scale_power", 16)
    if power > 127:
        raise ConfigError(f"fp16.initial_scale_power: {power}, expected at most 127 — lower it")
    fixed = fp16.get("loss_scale", 0)
    return LossScale(
        fixed=float(fixed) if fixed else None,
        initial=float(2**power),
        minimum=float(fp16.get("min_loss_scale", fp16.get("min_scale", 1))),
        window=int(fp16.get("loss_scale_window", 1000)),
        hysteresis=int(fp16.get("hysteresis", 2)),
        rule="deepspeed",
    )
