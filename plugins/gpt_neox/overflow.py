"""Overflow monitor of v2.0, made to work with optimizers without loss scaling."""

from __future__ import annotations

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "megatron.utils:OverflowMonitor.check",
    host="gpt-neox",
    why="in fp32 without ZeRO, the optimizer is torch's, which lacks the attribute overflow that v2.0 reads",
    until="support for GPT-NeoX v2.0 ends",
    without="crash",
    symptom=Symptom("self.optimizer.overflow"),
)
def fp32_overflow_attribute(call: Call) -> None:
    """Only count overflows of an optimizer that scales the loss."""
    if hasattr(call.instance.optimizer, "overflow"):
        call.proceed()
