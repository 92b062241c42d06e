"""A torch_npu that is installed where there is no CANN: in a CPU's or a GPU's image, or on a login node.

Seen with torch_npu 2.13.0: its import raises `ImportError: libhccl.so`, and torch imports it by itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from ascend_adapt import Symptom, wrap


def _loads(original: Any) -> str:
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed"
    try:
        import torch_npu  # noqa: F401
    except Exception:
        # torch_npu raises ImportError, RuntimeError or OSError, by what is missing; accelerate and DeepSpeed catch all.
        return ""
    return "torch_npu can be imported"


@wrap(
    "transformers.utils.import_utils:is_torch_npu_available",
    requires="transformers>=4.57",
    devices=("cpu", "cuda"),
    unless=_loads,
    why="it imports an installed torch_npu unguarded, and without CANN that raises: no model can be imported",
    until="transformers takes a torch_npu that cannot be imported for none, as accelerate does",
    without="crash",
    symptom=Symptom("import torch_npu"),
)
def broken_torch_npu_is_none(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return that there is no NPU; what the patch was applied for is that torch_npu cannot be imported."""
    return False


def variables(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps `import torch` from loading a torch_npu that has no CANN, for a job on something else."""
    if device == "npu" or environ.get("ASCEND_HOME_PATH") or importlib.util.find_spec("torch_npu") is None:
        return {}
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


PATCHES = (broken_torch_npu_is_none,)
