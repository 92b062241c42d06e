"""Warns about a DeepSpeed configuration that is given without --deepspeed, and does not check the file."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from ..code_bases import BIGSCIENCE


@wrap(
    "megatron.arguments:parse_args",
    name="warn_unused_deepspeed_config",
    host=BIGSCIENCE,
    why="a run with --deepspeed_config but without --deepspeed silently trains without DeepSpeed; pretrain_gpt.py "
    "still passes the file to a disabled zero.Init, which refuses it without a batch size",
    until="the code base rejects or logs the unused configuration",
    without="crash",
    symptom=Symptom(reason="the fault is a missing warning, and pretrain_gpt.py is a script"),
)
def warn_of_unused_configuration(call: Call) -> Any:
    """Warn on rank 0 about an unused configuration, and drop it."""
    parsed = call.proceed()
    named = getattr(parsed, "deepspeed_config", None)
    if not named or getattr(parsed, "deepspeed", False):
        return parsed
    if not getattr(parsed, "rank", 0):
        logging.getLogger(__name__).warning(
            "--deepspeed_config %s: set without --deepspeed, so neither DeepSpeed nor ZeRO is used — add --deepspeed "
            "and --zero-stage N to use it, or remove --deepspeed_config",
            named,
        )
    # Only zero.Init reads the configuration; stage 3 enables zero.Init with or without --deepspeed.
    if getattr(parsed, "zero_stage", 0) != 3:
        parsed.deepspeed_config = None
    return parsed
