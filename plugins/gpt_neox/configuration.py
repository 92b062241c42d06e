"""Configurations as people write them: settings of Ascend's fork, truth values in quotes, numbers as 1e-5."""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import Any

from ascend_adapt import Symptom, wrap
from ascend_adapt.errors import ConfigError

ARGUMENTS = "megatron.neox_arguments.arguments:NeoXArgs"

# Settings that only Ascend's fork of v2.0 has, and what takes their place here.
OF_ASCENDS_FORK = {
    "async_tensor_model_parallel_allreduce": "the all-reduce of gradients is not overlapped",
    "use_triangle_attn": "attention is ascend_adapt's; the fork's keeps the blocks of the first mask it sees",
}
_TRUTH = {"true": True, "false": False}
_SAID = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a section",
    list: "a list",
}


@wrap(
    f"{ARGUMENTS}.from_ymls",
    host="gpt-neox",
    why='settings of Ascend\'s fork are unknown here; "finetune": "True", as the guide has it, is a text, and 1e-5 is '
    "one for YAML 1.1: both end in an AttributeError, which does not name the setting",
    until="GPT-NeoX reads YAML 1.2 and names a setting of another type, and the guides name only what it has",
    without="crash",
    symptom=Symptom("field_def.type.__origin__ == Literal", at=f"{ARGUMENTS}.validate_types"),
)
def guides_settings(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave out settings of the fork, with a note, and read "True" and 1e-5 as what they say.

    Raises:
        ConfigError: a setting of a type that GPT-NeoX does not take.
    """
    made = instance.__init__  # a dataclass makes its own: nothing in the source is there to be wrapped

    def __init__(self: Any, **settings: Any) -> None:
        try:
            made(self, **understood(settings, instance.__dataclass_fields__))
        except AttributeError as error:
            if error.name != "__origin__":
                raise
            raise ConfigError(mistyped(self)) from None

    instance.__init__ = __init__
    try:
        return wrapped(*args, **kwargs)
    finally:
        instance.__init__ = made


def understood(settings: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that GPT-NeoX has, each of the type that it expects where the value says one of it."""
    result = {}
    for name, value in settings.items():
        if name in OF_ASCENDS_FORK and name not in fields:
            logging.getLogger("ascend_adapt").warning(
                "%s: is a setting of Ascend's fork, left out: %s", name, OF_ASCENDS_FORK[name]
            )
        elif name in ("optimizer", "scheduler"):
            result[name] = _with_numbers(value)
        else:
            result[name] = _of_type(fields[name].type if name in fields else None, value)
    return result


def _of_type(expected: Any, value: Any) -> Any:
    if expected is bool and isinstance(value, str):
        return _TRUTH.get(value.lower(), value)
    number = _number(value) if isinstance(value, (str, float)) else None
    if expected is float and number is not None:
        return number
    if expected is int and number is not None and number.is_integer():
        return int(number)
    return value


def _with_numbers(section: Any) -> Any:
    """Return a section in which each number of ``params``, which an optimizer gets as they are, is one."""
    if not isinstance(section, dict) or not isinstance(section.get("params"), dict):
        return section
    params = {name: _of_type(float, value) for name, value in section["params"].items()}
    return {**section, "params": params}


def _number(value: str | float) -> float | None:
    """Return the finite number that a value says, as YAML 1.2 reads it; None for what is none."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def mistyped(settings: Any) -> str:
    """Return which setting is of a type that upstream's own check has no words for."""
    for name, field in settings.__dataclass_fields__.items():
        value = getattr(settings, name)
        whole_for_fraction = field.type is float and type(value) is int
        if isinstance(field.type, type) and type(value) not in (field.type, type(None)) and not whole_for_fraction:
            expected = _SAID.get(field.type, field.type.__name__)
            return f"{name}: {value!r}, expected {expected} — correct it in the configuration"
    return "the configuration: a setting is of a type that GPT-NeoX does not take — correct it"


@wrap(
    f"{ARGUMENTS}.deepspeed_config",
    host="gpt-neox",
    why="a setting that is GPT-NeoX's own default is not told to DeepSpeed, which may have another: steps_per_print is "
    "None since 0.15.2, by which its pipeline engine divides where wall_clock_breakdown is on; clipping at 1 (the "
    "newest's) is none before 0.19.3, and none (v2.0's) is clipping at 1 since",
    until="GPT-NeoX tells DeepSpeed its defaults",
    without="crash",
    symptom=Symptom(
        "self.get_parent_class_value_dict_extra_ds(NeoXArgsDeepspeedConfig, only_non_defaults=True)",
        "self.get_parent_class_value_dict(NeoXArgsDeepspeedConfig, only_non_defaults=True)",
    ),
)
def own_defaults_are_told(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return DeepSpeed's configuration with steps_per_print, and under exact numerics with gradient_clipping.

    All others of NeoXArgsDeepspeedConfig have one default in both (DeepSpeed 0.6.0 to 0.19.8, runtime/constants.py).
    Clipping what upstream does not clip would train otherwise than a GPU does: it is told, and done if asked for.
    """
    told = {"steps_per_print": instance.steps_per_print, **wrapped(*args, **kwargs)}
    if "gradient_clipping" not in told:
        if os.environ.get("ASCEND_ADAPT_NUMERICS") == "exact":
            told["gradient_clipping"] = instance.gradient_clipping
        else:
            _tell_of_clipping(instance.gradient_clipping)
    return told


@functools.cache
def _tell_of_clipping(own: float) -> None:
    from deepspeed.runtime.constants import GRADIENT_CLIPPING_DEFAULT

    if own != GRADIENT_CLIPPING_DEFAULT and os.environ.get("RANK", "0") == "0":
        logging.getLogger("ascend_adapt").warning(
            "gradient_clipping: %s is GPT-NeoX's own default and not told to DeepSpeed, whose own is %s, on a GPU as "
            "well — start with --numerics exact to have %s",
            float(own),
            float(GRADIENT_CLIPPING_DEFAULT),
            float(own),
        )


@wrap(
    "megatron.checkpointing:load_checkpoint",
    host="gpt-neox",
    why='a finetune that finds nothing to load says "Unable to load checkpoint." and trains from random weights',
    until="GPT-NeoX refuses to finetune nothing",
    without="wrong numbers",
    symptom=Symptom('print("Unable to load checkpoint.")'),
)
def something_to_finetune(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse a finetune that loaded nothing; an empty folder to load from is a fresh start otherwise."""
    settings = args[0] if args else kwargs["neox_args"]
    engine = args[1] if len(args) > 1 else kwargs["model"]
    loaded = []
    load = engine.load_checkpoint

    def noting(*given: Any, **more: Any) -> Any:
        result = load(*given, **more)
        loaded.append(result[0])
        return result

    engine.load_checkpoint = noting
    try:
        iteration = wrapped(*args, **kwargs)
    finally:
        del engine.load_checkpoint
    if settings.finetune and loaded == [None]:
        raise FileNotFoundError(
            f"{settings.load}: there is no checkpoint to finetune, expected a folder with the file latest — give its "
            "path as load, or leave out finetune to start afresh"
        )
    return iteration
