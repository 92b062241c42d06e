"""A DeepSpeed configuration that is named and not used: told, not guessed."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import BIGSCIENCE


@wrap(
    "megatron.arguments:parse_args",
    host=BIGSCIENCE,
    why="a run with --deepspeed_config and without --deepspeed trains without DeepSpeed and says nothing of it",
    until="the code base refuses it, or says so",
    without="slower",
    symptom=Symptom(reason="the fault is that nothing is said"),
)
def unused_configuration_is_told(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Warn once, on the first rank, of a configuration that is not used."""
    parsed = wrapped(*args, **kwargs)
    named = getattr(parsed, "deepspeed_config", None)
    if named and not getattr(parsed, "deepspeed", False) and not getattr(parsed, "rank", 0):
        logging.getLogger(__name__).warning(
            "--deepspeed_config %s: is given without --deepspeed, so neither DeepSpeed nor its ZeRO is used — add "
            "--deepspeed and --zero-stage N to use it, or leave the configuration out",
            named,
        )
    return parsed


PATCHES = (unused_configuration_is_told,)
