"""Fixes for DeepSpeed configurations that are passed twice, repeat section names, or configure removed features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ascend_adapt import Call, Patch, Symptom, regular_files, wrap


@wrap(
    "deepspeed:initialize",
    requires="deepspeed>=0.9",
    why="GPT-NeoX passes the configuration in args.deepspeed_config and as config_params=; since 0.9.0 that is refused",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("hasattr(args, 'deepspeed_config') and args.deepspeed_config is not None"),
)
def single_config_argument(call: Call) -> Any:
    """Drop the second configuration if it equals the first; if they differ, DeepSpeed raises."""
    first = getattr(call["args"], "deepspeed_config", None)
    given = [name for name in ("config", "config_params") if call[name] is not None]
    if first is not None and given and all(same_configuration(first, call[name]) for name in given):
        for name in given:
            call[name] = None
    return call.proceed()


def same_configuration(one: Any, other: Any) -> bool:
    """Return whether two configurations (dicts or paths of JSON files) are equal."""
    return bool(one == other or _content(one) == _content(other))


def _content(configuration: Any) -> Any:
    if not isinstance(configuration, (str, Path)):
        return configuration
    try:
        return json.loads(regular_files.read_text(configuration))
    except (OSError, ValueError, RecursionError):
        return configuration  # DeepSpeed will report the error in this configuration.


# Keys of the loss scale, which some bf16 sections contain although bf16 has no loss scale.
_OF_A_LOSS_SCALE = ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale")


def _without_repeated_name(section: str, reader: str, spellings: tuple[str, ...], drops: tuple[str, ...] = ()) -> Patch:
    """Return the patch that reads a section without keys that repeat its name, and without the keys ``drops``."""

    @wrap(
        f"deepspeed.runtime.precision_config:{reader}",
        name=f"drop_{section}_type_key",
        requires="deepspeed>=0.17.1",
        why="sections of GPT-NeoX's configurations (20B.yml) have their name as a key, too; DeepSpeed 0.17.1 refuses "
        "that",
        until="GPT-NeoX uses only keys that DeepSpeed has",
        without="crash",
        symptom=Symptom(f"DeepSpeed{section.upper()}Config(**{section}_config_dict)"),
    )
    def read(call: Call) -> Any:
        """Read the section without keys such as ``"fp16": true`` and ``"type": "fp16"`` inside fp16."""
        whole = call["param_dict"]
        present = [name for name in spellings if isinstance(whole.get(name), dict)]
        call["param_dict"] = {**whole, **{name: _unrepeated(whole[name], spellings, drops) for name in present}}
        return call.proceed()

    return read


drop_fp16_type_key = _without_repeated_name("fp16", "get_float16_config", ("fp16",))
drop_bf16_type_key = _without_repeated_name("bf16", "get_bfloat16_config", ("bf16", "bfloat16"), _OF_A_LOSS_SCALE)


def _unrepeated(section: dict[str, Any], own_names: tuple[str, ...], without: tuple[str, ...]) -> dict[str, Any]:
    """Return a section without the key of its name; with another value of that key, DeepSpeed refuses the section."""

    def repeats(name: str, value: Any) -> bool:
        return (
            name in without
            or (name in own_names and value is section.get("enabled", False))
            or (name == "type" and value in own_names)
        )

    return {name: value for name, value in section.items() if not repeats(name, value)}


@wrap(
    "deepspeed.runtime.config:_reject_removed_config_keys",
    requires="deepspeed>=0.19.7",
    why="sections of removed features are rejected even if they are disabled, as in Megatron-DeepSpeed's "
    'templates: "curriculum_learning": {"enabled": false}',
    until="DeepSpeed accepts a removed feature that is disabled",
    without="crash",
    symptom=Symptom("key in param_dict"),
)
def allow_disabled_removed_features(call: Call) -> Any:
    """Only reject removed features that are enabled."""
    call["param_dict"] = _switched_on(call["param_dict"])
    return call.proceed()


def _switched_on(sections: dict[str, Any]) -> dict[str, Any]:
    """Return the sections and nested sections that are not false and do not contain ``"enabled": false``."""
    return {
        name: _switched_on(value) if isinstance(value, dict) else value
        for name, value in sections.items()
        if value is not False and not (isinstance(value, dict) and value.get("enabled") is False)
    }
