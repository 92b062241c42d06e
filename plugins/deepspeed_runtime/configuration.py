"""DeepSpeed configurations: passed twice to deepspeed.initialize, or with sections that repeat their own name."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "deepspeed:initialize",
    requires="deepspeed>=0.9",
    why="GPT-NeoX passes the configuration in args.deepspeed_config and as config_params=; since 0.9.0 that is refused",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("hasattr(args, 'deepspeed_config') and args.deepspeed_config is not None"),
)
def one_configuration(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop the second configuration if it equals the first; if they differ, DeepSpeed raises."""
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    first = getattr(call.arguments.get("args"), "deepspeed_config", None)
    given = [name for name in ("config", "config_params") if call.arguments.get(name) is not None]
    if first is not None and given and all(same_configuration(first, call.arguments[name]) for name in given):
        for name in given:
            del call.arguments[name]
    return wrapped(*call.args, **call.kwargs)


def same_configuration(one: Any, other: Any) -> bool:
    """Return whether two configurations, dicts or paths of JSON files, are equal."""
    return bool(one == other or _content(one) == _content(other))


def _content(configuration: Any) -> Any:
    if not isinstance(configuration, (str, Path)):
        return configuration
    try:
        return json.loads(Path(configuration).read_text())
    except (OSError, ValueError, RecursionError):
        return configuration  # DeepSpeed reports what is wrong with it


_PRECISION = "deepspeed.runtime.precision_config"
_WHY = "GPT-NeoX's configurations, 20B.yml among them, repeat a section's name in it; DeepSpeed 0.17.1 refuses that"
_UNTIL = "GPT-NeoX uses only keys that DeepSpeed has"
# Keys of a loss scale in some sections bf16, which has none.
_OF_A_LOSS_SCALE = ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale")


@wrap(
    f"{_PRECISION}:get_float16_config",
    requires="deepspeed>=0.17.1",
    why=_WHY,
    until=_UNTIL,
    without="crash",
    symptom=Symptom("DeepSpeedFP16Config(**fp16_config_dict)"),
)
def fp16_says_fp16(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the section fp16, read without ``"fp16": true`` and ``"type": "fp16"``, which repeat its name."""
    return _read(wrapped, args, kwargs, ("fp16",))


@wrap(
    f"{_PRECISION}:get_bfloat16_config",
    requires="deepspeed>=0.17.1",
    why=_WHY,
    until=_UNTIL,
    without="crash",
    symptom=Symptom("DeepSpeedBF16Config(**bf16_config_dict)"),
)
def bf16_says_bf16(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the section bf16, read without what repeats its name, and without a loss scale, which it has not."""
    return _read(wrapped, args, kwargs, ("bf16", "bfloat16"), _OF_A_LOSS_SCALE)


def _read(
    wrapped: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: tuple[str, ...],
    without: tuple[str, ...] = (),
) -> Any:
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    whole = call.arguments["param_dict"]
    read = {name: _unrepeated(whole[name], names, without) for name in names if isinstance(whole.get(name), dict)}
    call.arguments["param_dict"] = {**whole, **read}
    return wrapped(*call.args, **call.kwargs)


def _unrepeated(section: dict[str, Any], own_names: tuple[str, ...], without: tuple[str, ...]) -> dict[str, Any]:
    """Return a section without its own name; if that name has another value, DeepSpeed refuses it."""

    def repeats(name: str, value: Any) -> bool:
        return (
            name in without
            or (name in own_names and value is section.get("enabled", False))
            or (name == "type" and value in own_names)
        )

    return {name: value for name, value in section.items() if not repeats(name, value)}
