"""A torch_npu that is installed where there is no CANN: in a CPU's or a GPU's image, or on a login node.

Seen with torch_npu 2.13.0: its import raises `ImportError: libhccl.so`, and torch imports it by itself.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from ascend_adapt import Symptom, wrap

logger = logging.getLogger("ascend_adapt")


# Whether a package is there and cannot be imported. Asked once: torch.compile cannot trace an import, but reads this.
_broken: dict[str, bool] = {}


def _is_broken(package: str) -> bool:
    if package not in _broken:
        _broken[package] = importlib.util.find_spec(package) is not None and not _can_be_imported(package)
    return _broken[package]


def _can_be_imported(package: str) -> bool:
    try:
        importlib.import_module(package)
    except Exception as error:
        # ImportError, RuntimeError or OSError, by what is missing; accelerate and DeepSpeed catch all of them, too.
        logger.warning("ascend_adapt: %s is installed and cannot be imported (%s): taken for none", package, error)
        return False
    return True


@wrap(
    "transformers.utils.import_utils:is_torch_npu_available",
    requires="transformers>=4.57",
    devices=("cpu", "cuda"),
    why="it imports an installed torch_npu unguarded, and without CANN that raises: no model can be imported",
    until="transformers takes a torch_npu that cannot be imported for none, as accelerate does",
    without="crash",
    symptom=Symptom("import torch_npu"),
)
def broken_torch_npu_is_none(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return False where torch_npu cannot be imported, else what transformers says."""
    return not _is_broken("torch_npu") and bool(wrapped(*args, **kwargs))
