"""Evaluation through the pipeline engine, whose return value differs between DeepSpeed and the fork that NeoX names."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap


def takes_a_bare_loss(forward_step: Any) -> str:
    """Return why nothing is needed if evaluate() wants the loss alone, else ``""``."""
    code = getattr(forward_step.__globals__.get("evaluate"), "__code__", None)
    return "evaluate() takes the loss alone" if code and "metric_dict" not in code.co_varnames else ""


@wrap(
    "megatron.training:forward_step",
    host="gpt-neox",
    unless=takes_a_bare_loss,
    why="evaluate() unpacks a loss and metrics, and DeepSpeed's pipeline engine returns the loss alone",
    until="NeoX makes the pair itself",
    without="crash",
    symptom=Symptom("metric_dicts[key].append(metric_dict[key])", at="megatron.training:evaluate"),
)
def loss_and_metrics(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return (loss, no metrics) where the engine returned a loss; a pair (loss, logits) stays one."""
    result = wrapped(*args, **kwargs)
    return result if isinstance(result, tuple) else (result, {})
