"""A DeepSpeed configuration that is named and not used: told, and not checked."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import BIGSCIENCE


@wrap(
    "megatron.arguments:parse_args",
    host=BIGSCIENCE,
    why="a run with --deepspeed_config and without --deepspeed trains without DeepSpeed and says nothing of it; and "
    "pretrain_gpt.py gives the file to a zero.Init that is not enabled, which refuses one without a batch size",
    until="the code base refuses it, or says so",
    without="crash",
    symptom=Symptom(reason="the fault is that nothing is said, and pretrain_gpt.py is a script"),
)
def unused_configuration_is_told(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Warn once, on the first rank, of a configuration that is not used, and hand it to nobody."""
    parsed = wrapped(*args, **kwargs)
    named = getattr(parsed, "deepspeed_config", None)
    if not named or getattr(parsed, "deepspeed", False):
        return parsed
    if not getattr(parsed, "rank", 0):
        logging.getLogger(__name__).warning(
            "--deepspeed_config %s: is given without --deepspeed, so neither DeepSpeed nor its ZeRO is used — add "
            "--deepspeed and --zero-stage N to use it, or leave the configuration out",
            named,
        )
    # zero.Init, which stage 3 enables with or without --deepspeed, is the only one that reads it.
    if getattr(parsed, "zero_stage", 0) != 3:
        parsed.deepspeed_config = None
    return parsed
