"""Evaluation with the pipeline engine: adapts DeepSpeed's return value to that of the fork which GPT-NeoX requires."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


def takes_a_bare_loss(forward_step: Any) -> str:
    """Return why the patch is not needed if evaluate() only expects the loss, else ``""``."""
    code = getattr(forward_step.__globals__.get("evaluate"), "__code__", None)
    return "evaluate() only expects the loss" if code and "metric_dict" not in code.co_varnames else ""


@wrap(
    "megatron.training:forward_step",
    host="gpt-neox",
    unless=takes_a_bare_loss,
    why="evaluate() unpacks a loss and metrics, but DeepSpeed's pipeline engine returns only the loss",
    until="GPT-NeoX handles a bare loss",
    without="crash",
    symptom=Symptom("metric_dicts[key].append(metric_dict[key])", at="megatron.training:evaluate"),
)
def loss_and_metrics(call: Call) -> Any:
    """Return (loss, {}) if the engine returned a bare loss; a pair is returned unchanged."""
    result = call.proceed()
    return result if isinstance(result, tuple) else (result, {})
