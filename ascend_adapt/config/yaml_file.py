"""Conversion of a TrainConfig to plain data, as in config.yaml, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ascend_adapt.config import checks
from ascend_adapt.config import train_config as parts
from ascend_adapt.config.train_config import Cloze, Model, TrainConfig
from ascend_adapt.errors import ConfigError

_PARTS = {
    name: getattr(parts, name)
    for name in (
        *("Batch", "Checkpoint", "Data", "Init", "Logging", "LossScale", "Model", "OptimizerConfig", "Parallel"),
        *("Precision", "Profile", "Schedule", "BlankInfilling", "Cloze", "GlmVocabulary", "TextSamples"),
    )
}


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as plain data."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def from_dict(data: dict[str, Any]) -> TrainConfig:
    """Build the configuration from the output of ``to_dict``.

    Raises:
        ConfigError: a name is unknown or missing, or a value is not valid.
    """
    config: TrainConfig = _built(TrainConfig, data, "config")
    return config


def model_from_dict(data: dict[str, Any]) -> Model:
    """Build a model from the part of ``to_dict``'s output that describes it; raises like ``from_dict``."""
    model: Model = _built(Model, data, "config.model")
    return model


def run_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what evaluation needs besides the model: the data and GLM's finetuning task, from ``to_dict``'s output."""
    return {**(data.get("data") or {}), "cloze": data.get("cloze")}


def cloze_from_dict(data: dict[str, Any]) -> Cloze:
    """Build a finetuning task from the part of ``to_dict``'s output that describes it; raises like ``from_dict``."""
    cloze: Cloze = _built(Cloze, data, "config.cloze")
    return cloze


def _built(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {data!r}, expected names and values — write it as in config.yaml")
    fields = {one.name: str(one.type) for one in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}, expected {', '.join(fields)} — correct the names")
    values = {}
    for name, value in data.items():
        part = fields[name].removesuffix(" | None")
        if part in _PARTS and not (value is None and part != fields[name]):
            values[name] = _built(_PARTS[part], value, f"{where}.{name}")
            continue
        values[name] = tuple(value) if isinstance(value, list) else value
        checks.of_type(f"{where}.{name}", values[name], fields[name])
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}, expected every name without a default — add it") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value
