"""The buffers of GPT-NeoX's position embeddings, in 16 bits as its parameters are."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "deepspeed.runtime.engine:DeepSpeedEngine._mixed_precision_dtypes",
    host="gpt-neox",
    requires="deepspeed>=0.19.2",
    why="since 0.19.2 buffers stay float32, and v2.0's rotary embedding makes query and key float32, and value not",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("buffer_dtype = None"),
)
def buffers_like_parameters(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return (type of parameters, type of buffers), the same where data_types names none: as every release before."""
    of_parameters, of_buffers = wrapped(*args, **kwargs)
    return of_parameters, of_buffers or of_parameters
