"""Accepts GPT-NeoX configurations with settings of Ascend's fork, quoted booleans, and numbers such as 1e-5."""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.errors import ConfigError

ARGUMENTS = "megatron.neox_arguments.arguments:NeoXArgs"

# Settings that only Ascend's fork of v2.0 has, and their effect here.
OF_ASCENDS_FORK = {
    "async_tensor_model_parallel_allreduce": "the all-reduce of gradients is not overlapped",
    "use_triangle_attn": "ascend_adapt's attention is used; the fork's attention reuses the blocks of the first mask",
}
_BOOLEANS = {"true": True, "false": False}
_TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "a section",
    list: "a list",
}


@wrap(
    f"{ARGUMENTS}.from_ymls",
    host="gpt-neox",
    why='settings of Ascend\'s fork are unknown upstream; "finetune": "True", as in its guide, is a string, and so is '
    "1e-5 in YAML 1.1: both fail with an AttributeError that does not name the setting",
    until="GPT-NeoX reads YAML 1.2 and reports a mistyped setting, and the guides only use settings of GPT-NeoX",
    without="crash",
    symptom=Symptom("field_def.type.__origin__ == Literal", at=f"{ARGUMENTS}.validate_types"),
)
def ascend_fork_settings(call: Call) -> Any:
    """Drop settings of the fork with a warning; read "True" as a boolean and 1e-5 as a number.

    Raises:
        ConfigError: a setting has a type that GPT-NeoX does not accept.
    """
    settings_class = call.instance
    original = settings_class.__init__  # dataclass generates this function, so the source has no function to wrap.

    def __init__(self: Any, **settings: Any) -> None:
        try:
            original(self, **understood(settings, settings_class.__dataclass_fields__))
        except AttributeError as error:
            if error.name != "__origin__":
                raise
            raise ConfigError(mistyped(self)) from None

    settings_class.__init__ = __init__
    try:
        return call.proceed()
    finally:
        settings_class.__init__ = original


def understood(settings: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that GPT-NeoX supports, converted to the expected types if possible."""
    result = {}
    for name, value in settings.items():
        if name in OF_ASCENDS_FORK and name not in fields:
            logging.getLogger("ascend_adapt").warning(
                "%s: is a setting of Ascend's fork, ignored: %s", name, OF_ASCENDS_FORK[name]
            )
        elif name in ("optimizer", "scheduler"):
            result[name] = _with_numbers(value)
        else:
            result[name] = _of_type(fields[name].type if name in fields else None, value)
    return result


def _of_type(expected: Any, value: Any) -> Any:
    if expected is bool and isinstance(value, str):
        return _BOOLEANS.get(value.lower(), value)
    number = _number(value) if isinstance(value, (str, float)) else None
    if expected is float and number is not None:
        return number
    if expected is int and number is not None and number.is_integer():
        return int(number)
    return value


def _with_numbers(section: Any) -> Any:
    """Return a section with numbers in ``params``, which GPT-NeoX passes to an optimizer unchecked."""
    if not isinstance(section, dict) or not isinstance(section.get("params"), dict):
        return section
    params = {name: _of_type(float, value) for name, value in section["params"].items()}
    return {**section, "params": params}


def _number(value: str | float) -> float | None:
    """Return the finite number that YAML 1.2 reads from ``value``, or None."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def mistyped(settings: Any) -> str:
    """Return the message for a setting whose type upstream's check cannot describe."""
    for name, field in settings.__dataclass_fields__.items():
        value = getattr(settings, name)
        int_for_float = field.type is float and type(value) is int
        if isinstance(field.type, type) and type(value) not in (field.type, type(None)) and not int_for_float:
            expected = _TYPE_NAMES.get(field.type, field.type.__name__)
            return f"{name}: {value!r}, expected {expected} — correct it in the configuration"
    return "the configuration: a setting has a type that GPT-NeoX does not accept — correct it"


@wrap(
    f"{ARGUMENTS}.deepspeed_config",
    name="pass_own_defaults",
    host="gpt-neox",
    why="GPT-NeoX does not pass settings at their default to DeepSpeed, whose default may differ: steps_per_print is "
    "None since 0.15.2, and the pipeline engine divides by it with wall_clock_breakdown; the newest GPT-NeoX's "
    "default gradient_clipping of 1 becomes no clipping before 0.19.3, and v2.0's default of no clipping becomes 1 "
    "from 0.19.3 on",
    until="GPT-NeoX passes its defaults to DeepSpeed",
    without="crash",
    symptom=Symptom(
        "self.get_parent_class_value_dict_extra_ds(NeoXArgsDeepspeedConfig, only_non_defaults=True)",
        "self.get_parent_class_value_dict(NeoXArgsDeepspeedConfig, only_non_defaults=True)",
    ),
)
def own_defaults(call: Call) -> Any:
    """Return DeepSpeed's configuration with steps_per_print and, under exact numerics, gradient_clipping.

    All other settings of NeoXArgsDeepspeedConfig have the same default in both (DeepSpeed 0.6.0 to 0.19.8,
    runtime/constants.py). Clipping where upstream does not clip would train differently from a GPU, so the difference
    is only logged unless exact numerics are requested.
    """
    config = {"steps_per_print": call.instance.steps_per_print, **call.proceed()}
    if "gradient_clipping" not in config:
        if os.environ.get("ASCEND_ADAPT_NUMERICS") == "exact":
            config["gradient_clipping"] = call.instance.gradient_clipping
        else:
            _warn_of_clipping(call.instance.gradient_clipping)
    return config


@functools.cache
def _warn_of_clipping(own: float) -> None:
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT

    if own != GRADIENT_CLIPPING_DEFAULT and os.environ.get("RANK", "0") == "0":
        logging.getLogger("ascend_adapt").warning(
            "gradient_clipping: %s is GPT-NeoX's default, which it does not pass to DeepSpeed, whose default is %s, "
            "also on a GPU — start with --numerics exact to use %s",
            float(own),
            float(GRADIENT_CLIPPING_DEFAULT),
            float(own),
        )


@wrap(
    "megatron.checkpointing:load_checkpoint",
    host="gpt-neox",
    why='a finetune without a checkpoint only prints "Unable to load checkpoint." and trains from random weights',
    until="GPT-NeoX rejects a finetune without a checkpoint",
    without="wrong numbers",
    symptom=Symptom('print("Unable to load checkpoint.")'),
)
def require_finetune_checkpoint(call: Call) -> Any:
    """Reject a finetuning run that loaded no checkpoint; without finetune, an empty folder means a new training run."""
    settings, engine = call["neox_args"], call["model"]
    loaded = []
    load = engine.load_checkpoint

    def recording(*given: Any, **more: Any) -> Any:
        result = load(*given, **more)
        loaded.append(result[0])
        return result

    engine.load_checkpoint = recording
    try:
        iteration = call.proceed()
    finally:
        del engine.load_checkpoint
    if settings.finetune and loaded == [None]:
        raise FileNotFoundError(
            f"{settings.load}: no checkpoint to finetune found, expected a folder with the file latest — set load to "
            "its path, or remove finetune to train from random weights"
        )
    return iteration
