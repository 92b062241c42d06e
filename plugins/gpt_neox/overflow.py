"""Loss scaling where there is none: v2.0 asks every optimizer whether it overflowed."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "megatron.utils:OverflowMonitor.check",
    host="gpt-neox",
    why="in fp32 without ZeRO the optimizer is a plain one, which knows no overflow; v2.0 asks all the same",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom("self.optimizer.overflow"),
)
def nothing_overflows(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count overflows of an optimizer that scales the loss, and of no other."""
    if hasattr(instance.optimizer, "overflow"):
        wrapped(*args, **kwargs)
