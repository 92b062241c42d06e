"""Keeps buffers of GPT-NeoX's position embeddings in 16 bits, like its parameters."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "deepspeed.runtime.engine:DeepSpeedEngine._mixed_precision_dtypes",
    host="gpt-neox",
    requires="deepspeed>=0.19.2",
    why="since 0.19.2, buffers stay float32, so v2.0's rotary embedding returns float32 query and key, but not value",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("buffer_dtype = None"),
)
def buffers_in_model_dtype(call: Call) -> Any:
    """Return (dtype of parameters, dtype of buffers), which are equal unless data_types sets one, as before 0.19.2."""
    of_parameters, of_buffers = call.proceed()
    return of_parameters, of_buffers or of_parameters
