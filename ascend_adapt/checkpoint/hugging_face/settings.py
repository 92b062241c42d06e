"""Settings of config.json that the architectures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascend_adapt.errors import CheckpointError

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}


class Unsupported(CheckpointError):
    """The native model does not support an architecture's settings, or the architecture cannot express a model."""


def activation(name: str) -> str:
    """Return the canonical name of an activation.

    Raises:
        Unsupported: the native model does not support the activation.
    """
    if name not in _ACTIVATIONS:
        raise Unsupported(f"activation {name!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def rotary(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return the base and fraction of the rotary embedding, from the keys of transformers before or since 5.

    Raises:
        Unsupported: the frequencies are scaled.
    """
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind != "default":
        raise Unsupported(f"rotary embedding scaled by {kind!r}, expected 'default'")
    base = stated.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    fraction = stated.get("partial_rotary_factor", config.get("rotary_pct", config.get("partial_rotary_factor", 1.0)))
    return float(base), float(fraction)


def require(values: Mapping[str, tuple[object, object]]) -> None:
    """Check settings, given as (observed, expected) by name.

    Raises:
        Unsupported: settings differ; the message lists them all.
    """
    wrong = [f"{name} {seen!r}, expected {wanted!r}" for name, (seen, wanted) in values.items() if seen != wanted]
    if wrong:
        raise Unsupported("; ".join(wrong))
