"""Optimizer, learning rate schedule and precision of GPT-NeoX's recipe.

Sources of the derivations: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/neox_arguments/arguments.py
(calculate_derived), megatron/training.py (optimizer, schedule).
"""

from __future__ import annotations

import math
from typing import Any

from ascend_adapt.config.train_config import OptimizerConfig, Precision, Schedule
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import deepspeed_json
from ascend_adapt.recipes.neox_files import converted
from ascend_adapt.recipes.options import Options, Version

# Used if the key "optimizer" is not given; source: OPT_PARAMS_DEFAULTS of upstream.
_DEFAULT_OPTIMIZER: dict[str, Any] = {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8}}


def optimizer(options: Options) -> tuple[float, OptimizerConfig]:
    """Learning rate and optimizer; raises ConfigError."""
    section: dict[str, Any] = options("optimizer") or _DEFAULT_OPTIMIZER
    kind, parameters = str(section.get("type", "Adam")), section.get("params") or {}
    if not isinstance(parameters, dict):
        raise ConfigError(f"optimizer.params: {parameters!r}, expected names and values — correct it")
    parameters = dict(parameters)
    if kind.lower() not in ("adam", "adamw"):
        raise ConfigError(f"optimizer.type: {kind!r}, expected Adam — the native trainer supports no other here")
    unknown = sorted(map(str, set(section) - {"type", "params", "legacy_fusion"}))
    if unknown:
        raise ConfigError(
            f"optimizer: {', '.join(unknown)} unknown, expected type and params only — correct them or leave them out"
        )
    lr = _number(parameters, "lr", 0.001)
    betas = parameters.pop("betas", [0.9, 0.999])
    if not isinstance(betas, list) or len(betas) != 2 or not all(isinstance(beta, (int, float)) for beta in betas):
        raise ConfigError(f"optimizer.params.betas: {betas!r}, expected two numbers — correct them")
    eps = _number(parameters, "eps", 1e-8)
    decay = options("weight_decay")
    stated = parameters.pop("weight_decay", decay)
    if stated != decay:
        raise ConfigError(
            f"optimizer.params.weight_decay: {stated}, expected weight-decay's {decay} — leave it out there"
        )
    # Defaults that upstream writes for other optimizers, which are not used here.
    for name in ("freeze_step", "momentum", "cuda_aware"):
        parameters.pop(name, None)
    for name in ("adam_w_mode", "bias_correction"):
        value = parameters.pop(name, True)
        if value is not True:
            raise ConfigError(f"optimizer.params.{name}: {value!r}, expected true — no other is supported")
    if parameters:
        raise ConfigError(
            f"optimizer.params: {', '.join(map(str, parameters))} unknown — correct them or leave them out"
        )
    clip = float(options("gradient_clipping"))
    return lr, OptimizerConfig(
        kind="adam",
        betas=(float(betas[0]), float(betas[1])),
        eps=eps,
        weight_decay=decay,
        clip_grad=clip,
    )


def _number(parameters: dict[str, Any], name: str, default: float) -> float:
    value = converted(f"optimizer.params.{name}", parameters.pop(name, default), "float", [])
    if value is None:
        raise ConfigError(f"optimizer.params.{name}: null, expected a number — set one, or leave it out")
    return float(value)


def schedule(options: Options, version: Version, lr: float, iterations: int) -> Schedule:
    """Learning rate schedule; raises ConfigError."""
    fraction = options("lr_decay_fraction")
    # 0 counts as 1, as in upstream.
    decay = max(1, options("lr_decay_iters", math.floor(iterations * fraction) if fraction is not None else iterations))
    return Schedule(
        dialect="neox-v2" if version.name == "v2.0" else "neox",
        lr=lr,
        min_lr=options("min_lr"),
        style=options("lr_decay_style"),
        unit="iterations",
        warmup=options("warmup") * decay,
        decay=decay,
    )


def precision(options: Options) -> Precision:
    """Dtype and loss scale; raises ConfigError."""
    fp16, bf16, stated = options("fp16", {}), options("bf16", {}), options("precision")
    if options.version.name == "v2.0":
        dtype = _dtype_of_v2(fp16, stated)
    else:
        if fp16.get("type") == "bfloat16":
            # As in pythia/1B.yml; upstream reads it as fp16, an adapted run does not: plugins/gpt_neox/bfloat16.py.
            fp16, bf16 = {}, bf16 or {"enabled": fp16.get("enabled", False)}
        switched_on = [name for name, section in (("fp16", fp16), ("bfloat16", bf16)) if section.get("enabled")]
        asked = sorted({*switched_on, stated or "fp32"} - ({"fp32"} if stated is None and switched_on else set()))
        if len(asked) > 1:
            raise ConfigError(f"precision: {' and '.join(asked)} are both set, expected one — remove one")
        dtype = {"bfloat16": "bf16"}.get(asked[0], asked[0])
    if options("fp16_lm_cross_entropy"):
        raise ConfigError("fp16_lm_cross_entropy: True, expected False — the loss is always computed in fp32")
    return Precision(dtype=dtype, loss_scale=deepspeed_json.loss_scale(fp16))


def _dtype_of_v2(fp16: dict[str, Any], stated: str | None) -> str:
    if fp16.get("type", stated) == "bfloat16":
        return "bf16"
    if stated == "fp16" and not fp16.get("enabled"):
        raise ConfigError("precision: 'fp16' without fp16.enabled, with which v2.0 trains in fp32 — set one of the two")
    return "fp16" if fp16.get("enabled") else "fp32"
