"""Changed settings of a resumed run: each difference from the checkpoint is rejected, replaced or logged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_adapt.config.train_config import Model, OptimizerConfig, Schedule, TrainConfig
from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.errors import TrainingError

ORDER = (
    *(f"data.{name}" for name in ("train", "valid", "test", "split", "order", "sampler", "seed", "seq_length")),
    "data.weight_by_documents",
)
"""Settings that, together with the number of samples of the run, determine the order of samples."""
MAY_CHANGE = ("hidden_dropout", "attention_dropout", "embedding_init", "init", "output_init", "head_init")
"""Model settings that do not affect the computation."""


def changes_of_order(then: Mapping[str, Any], config: TrainConfig, token_files: Mapping[str, str]) -> list[str]:
    """Return a warning that lists changed settings and token files that alter the order of samples."""
    # A cyclic order is drawn for each data-parallel rank, and GLM's blanks for each micro batch.
    is_glm = config.data.blanks is not None
    names = (*ORDER, "batch.micro", "parallel.data") if is_glm or config.data.sampler == "cyclic" else ORDER
    names = (*names, "data.blanks") if is_glm else names
    configs = (then["config"], to_dict(config))
    before, now = (
        {**{name: _value(one, name) for name in names}, **({} if is_glm else _wanted(one))} for one in configs
    )
    # Checkpoints of earlier releases do not record their token files.
    was = then.get("token_files", {})
    now |= {prefix: what for prefix, what in token_files.items() if prefix in was}
    before |= was
    changed = [f"{name} was {before[name]}, is {now[name]}" for name in now if before[name] != now[name]]
    if not changed:
        return []
    return [f"warning: the order of samples changed, so some are repeated or skipped: {'; '.join(changed)}"]


def changes_of_model(then: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Return a warning that lists model settings that changed without changing a shape."""
    was, now = then["model"], to_dict(config)["model"]
    names = [one.name for one in dataclasses.fields(Model) if one.name not in MAY_CHANGE and one.name in was]
    changed = [f"{name} was {was[name]}, is {now[name]}" for name in names if was[name] != now[name]]
    return [f"warning: the model differs from the saved one: {'; '.join(changed)}"] if changed else []


def resumed_schedule(then: Mapping[str, Any], config: TrainConfig, source: Path) -> tuple[TrainConfig, list[str]]:
    """Return the configuration with the schedule and weight decay that the resumed run uses, and a log line per change.

    Source: NVIDIA/Megatron-LM@core_v0.9.0 megatron/core/optimizer_param_scheduler.py (_check_and_set), which does not
    compare WSD's settings and the initial learning rate. A run that does not load the optimizer states may have another
    schedule.

    Raises:
        TrainingError: values differ, and ``resume_schedule`` is "match".
    """
    was, now = _schedule(then), _schedule(to_dict(config))
    changed = {name: (was[name], now[name]) for name in now if name in was and was[name] != now[name]}
    policy = config.checkpoint.resume_schedule if config.checkpoint.load_optimizer else "override"
    if changed and policy == "match":
        differences = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
        raise TrainingError(
            f"{source}: {differences}; expected the same schedule — restore the values, or resume with "
            "--override-opt_param-scheduler (new values) or --use-checkpoint-opt_param-scheduler (values of the "
            "checkpoint)"
        )
    used = "configured" if policy == "override" else "checkpoint's"
    lines = [f"{name}: {old} -> {new}, the {used} value is used" for name, (old, new) in changed.items()]
    if policy == "checkpoint":
        known = {one.name for one in dataclasses.fields(Schedule)}
        schedule = {name: value for name, value in then["schedule"].items() if name in known}
        config = dataclasses.replace(
            config,
            schedule=dataclasses.replace(config.schedule, **schedule),
            optimizer=dataclasses.replace(config.optimizer, weight_decay=then["optimizer"]["weight_decay"]),
        )
    return config, lines


def changes_of_optimizer(then: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Return a log line per changed setting of optimizer, batch and precision; the configured value is used."""
    now = to_dict(config)
    names = [f"optimizer.{one.name}" for one in dataclasses.fields(OptimizerConfig) if one.name != "weight_decay"]
    names += ["batch.total", "batch.rampup", "precision.dtype"]
    pairs = {name: (_value(then, name), _value(now, name)) for name in names}
    return [f"{name}: {old} -> {new}, the configured value is used" for name, (old, new) in pairs.items() if old != new]


def _schedule(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule settings that have an effect, and the weight decay."""
    settings = {f"schedule.{name}": value for name, value in config["schedule"].items()}
    if config["schedule"]["style"] != "WSD":
        del settings["schedule.wsd_style"], settings["schedule.wsd_decay"]
    if config["schedule"]["weight_decay_style"] == "constant":
        del settings["schedule.weight_decay_over"]
    return {**settings, "optimizer.weight_decay": config["optimizer"]["weight_decay"]}


def scheduled_by(then: Mapping[str, Any], config: TrainConfig) -> tuple[int, list[str]]:
    """Return the progress of the learning rate schedule in the configured unit, and log messages.

    After a change of unit, the progress includes steps that were skipped.
    """
    unit = config.schedule.unit
    before = then["config"]["schedule"]["unit"]
    if unit == before:
        return then["scheduled"], []
    scheduled = then["consumed_samples" if unit == "samples" else "iteration"]
    return scheduled, [f"the schedule continues from {scheduled} {unit}; the checkpoint counted it in {before}"]


def _wanted(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of samples of the run: sample order depends on it, because all epochs are shuffled together."""
    return {"number of samples": config["train_samples"] or config["iterations"] * config["batch"]["total"]}


def _value(config: Mapping[str, Any], name: str) -> Any:
    value: Any = config
    for word in name.split("."):
        value = value[word]
    return value
