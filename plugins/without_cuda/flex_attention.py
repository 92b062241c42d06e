"""Training with FlexAttention on a CPU. Source: torch 2.13 nn/attention/flex_attention.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from . import programs


@wrap(
    "torch.nn.attention.flex_attention:_validate_device",
    devices="cpu",
    why="it rejects inputs with gradients, although only its compiled form has no backward pass on a CPU",
    until="torch's compiler has this backward pass for CPUs",
    without="crash",
    symptom=Symptom('query.device.type == "cpu"'),
)
def flex_attention_in_training(call: Call) -> Any:
    """Accept every input of a program for GPUs, whose compiled functions run eagerly."""
    return None if programs.is_mapped() else call.proceed()
