"""deepspeed.initialize called with the configuration twice."""

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
    """Drop the second configuration if it equals the first; if they differ, DeepSpeed's own error stands."""
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    first = getattr(call.arguments.get("args"), "deepspeed_config", None)
    given = [name for name in ("config", "config_params") if call.arguments.get(name) is not None]
    if first is not None and given and all(same_configuration(first, call.arguments[name]) for name in given):
        for name in given:
            del call.arguments[name]
    return wrapped(*call.args, **call.kwargs)


def same_configuration(one: Any, other: Any) -> bool:
    """Return whether two configurations, dicts or paths of JSON files, say the same."""
    return bool(one == other or _content(one) == _content(other))


def _content(configuration: Any) -> Any:
    if not isinstance(configuration, (str, Path)):
        return configuration
    try:
        return json.loads(Path(configuration).read_text())
    except (OSError, ValueError):
        return configuration  # DeepSpeed will say what is wrong with it


PATCHES = (one_configuration,)
