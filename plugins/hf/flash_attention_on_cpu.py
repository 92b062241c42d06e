"""FlashAttention requested by name in a job on CPUs. Source: transformers 4.57.6 and 5.24.0."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from ascend_adapt import Call, Symptom, wrap

logger = logging.getLogger("ascend_adapt")
_FLASH_ATTENTION = re.compile(r"flash_attention_\d")


@wrap(
    "transformers.modeling_utils:PreTrainedModel._check_and_adjust_attn_implementation",
    requires="transformers>=4.57",
    devices="cpu",
    why="attn_implementation='flash_attention_2' raises an error, because the package flash_attn needs a GPU",
    until="transformers computes flash_attention_2 on a CPU",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers"),
)
def flash_attention_on_cpu(call: Call) -> Any:
    """Compute the same attention with SDPA, or eagerly if the model has no SDPA; report that once."""
    requested = call["attn_implementation"]
    if requested is not None and _FLASH_ATTENTION.fullmatch(requested):
        call["attn_implementation"] = used = "sdpa" if call.instance._supports_sdpa else "eager"
        _report_once(requested, used)
    return call.proceed()


@functools.cache
def _report_once(requested: str, used: str) -> None:
    logger.warning("ascend_adapt: attn_implementation=%r is computed as %r on a CPU", requested, used)
