"""FlashAttention requested by name, where transformers would require the package flash_attn.

From 4.51 on, it calls torch_npu's attention on an NPU. Source: transformers 4.37.2, 4.50.3, 4.53.3, 4.54.1, 4.57.6 and
5.24.0.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from ascend_adapt import Call, Symptom, wrap

logger = logging.getLogger("ascend_adapt")
_FLASH_ATTENTION = re.compile(r"flash_attention_\d")
_CHECK_OF_A_CLASS = "transformers.modeling_utils:PreTrainedModel._check_and_enable_flash_attn_2"
_IN_THE_CALLERS = Symptom(reason="the fault is in the callers")


@wrap(
    "transformers.modeling_utils:PreTrainedModel._check_and_adjust_attn_implementation",
    requires="transformers>=4.54",
    devices="cpu",
    why="attn_implementation='flash_attention_2' raises an error, because the package flash_attn needs a GPU",
    until="transformers computes flash_attention_2 on a CPU",
    without="crash",
    symptom=_IN_THE_CALLERS,
)
def flash_attention_on_cpu(call: Call) -> Any:
    """Compute the same attention with SDPA, or eagerly if the model has no SDPA; report that once."""
    requested = call["attn_implementation"]
    if requested is not None and _FLASH_ATTENTION.fullmatch(requested):
        call["attn_implementation"] = _instead_of(requested, call.instance, "a CPU")
    return call.proceed()


@wrap(
    _CHECK_OF_A_CLASS,
    requires="transformers>=4.37,<4.54",
    devices="cpu",
    why="attn_implementation='flash_attention_2' raises an error, because the package flash_attn needs a GPU",
    until="transformers 4.54, which chooses the attention of an instance: flash_attention_on_cpu",
    without="crash",
    symptom=_IN_THE_CALLERS,
)
def flash_attention_check_on_cpu(call: Call) -> Any:
    """Compute the same attention with SDPA, or eagerly if the model has no SDPA; report that once."""
    return _with_torchs_attention(call, "a CPU")


@wrap(
    _CHECK_OF_A_CLASS,
    requires="transformers>=4.37,<4.51",
    devices="npu",
    why="attn_implementation='flash_attention_2' raises an error, because the package flash_attn needs a GPU",
    until="transformers 4.51, which calls torch_npu's attention instead",
    without="crash",
    symptom=_IN_THE_CALLERS,
)
def flash_attention_check_on_npu(call: Call) -> Any:
    """Compute the same attention with SDPA, or eagerly if the model has no SDPA; report that once."""
    return _with_torchs_attention(call, "an NPU")


def _with_torchs_attention(call: Call, device: str) -> Any:
    config = call["config"]
    config._attn_implementation = _instead_of("flash_attention_2", call.instance, device)
    return config


def _instead_of(requested: str, model: Any, device: str) -> str:
    used = "sdpa" if model._supports_sdpa else "eager"
    _report_once(requested, used, device)
    return used


@functools.cache
def _report_once(requested: str, used: str, device: str) -> None:
    logger.warning("ascend_adapt: attn_implementation=%r is computed as %r on %s", requested, used, device)
