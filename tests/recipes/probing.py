"""Give every option another value than upstream's default, and see that none of them passes in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options


def other_values(facts: Mapping[str, Any]) -> list[Any]:
    """Return values that the option can have, none of them its default."""
    default, kind = facts.get("default"), str(facts.get("type", "str"))
    if facts.get("action") in ("true", "false") or kind == "bool":
        return [not default]
    if facts.get("choices"):
        return [choice for choice in facts["choices"] if choice != default]
    if "Literal" in kind:
        words = kind.replace('"', "'").split("'")[1::2]
        return [word for word in words if word != default][:3]
    if "dict" in kind:
        return [{"enabled": True, "type": "x", "stage": 2}]
    if facts.get("nargs") or "list" in kind.lower():
        return [["7", "8"]]
    if "int" in kind or "float" in kind:
        return [value for value in (2, 3) if value != default]
    return ["something"]


def odd_values(facts: Mapping[str, Any]) -> list[Any]:
    """Return values of the option's type that nobody means."""
    kind = str(facts.get("type", "str"))
    if "dict" in kind:
        return [{}, {"stage": "x"}, {"stage": -1}, {"type": 3}, {"params": 3}, {"params": {"betas": 1, "lr": "x"}}]
    if facts.get("nargs") or "list" in kind.lower():
        return [[], ["x"], [1], [["global"]], [[["global"], 4]]]
    return [0, -1, 1, 10**9] if "int" in kind or "float" in kind else []


def tripping(
    build: Callable[[dict[str, Any]], tuple[TrainConfig, Options]], base: Mapping[str, Any], options: Mapping[str, Any]
) -> list[str]:
    """Return the options of which an odd value raises something else than a ConfigError."""
    found = []
    for name, facts in options.items():
        key = facts.get("dest", name)
        for value in odd_values(facts):
            try:
                build({**base, key: value})
            except ConfigError:
                continue
            except Exception as error:
                found.append(f"{key}={value!r}: {error!r}")
    return found


def unheeded(
    build: Callable[[dict[str, Any]], tuple[TrainConfig, Options]], base: Mapping[str, Any], options: Mapping[str, Any]
) -> list[str]:
    """Return the options of which some value changes nothing, is not noted, and is no error."""
    plain, _ = build(dict(base))
    silent = []
    for name, facts in options.items():
        key = facts.get("dest", name)
        if key in base:
            continue
        for value in other_values(facts):
            try:
                config, asked = build({**base, key: value})
            except ConfigError:
                continue
            if config == plain and not any(key in note for note in asked.notes()):
                silent.append(key)
                break
    return silent
