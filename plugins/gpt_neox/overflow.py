"""Overflow monitor of v2.0 for optimizers without loss scaling."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "megatron.utils:OverflowMonitor.check",
    host="gpt-neox",
    why="in fp32 without ZeRO the optimizer is torch's, without the attribute overflow that v2.0 reads",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom("self.optimizer.overflow"),
)
def nothing_overflows(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count overflows only of an optimizer that scales the loss."""
    if hasattr(instance.optimizer, "overflow"):
        wrapped(*args, **kwargs)
