"""Support for torch_npu installed without CANN, for example in an image for CPUs or GPUs, or on a login node.

Seen with torch_npu 2.13.0: its import raises `ImportError: libhccl.so`, and torch imports it automatically.
"""

from __future__ import annotations

import importlib.util
import logging

from ascend_adapt import Call, Symptom, wrap

logger = logging.getLogger("ascend_adapt")


# Maps packages to whether they are installed but cannot be imported. Cached, because torch.compile cannot trace an
# import.
_broken: dict[str, bool] = {}


def _is_broken(package: str) -> bool:
    if package not in _broken:
        _broken[package] = importlib.util.find_spec(package) is not None and not _can_be_imported(package)
    return _broken[package]


def _can_be_imported(package: str) -> bool:
    try:
        importlib.import_module(package)
    except Exception as error:
        # ImportError, RuntimeError or OSError, depending on the missing part; accelerate and DeepSpeed also catch all
        # of them.
        logger.warning(
            "ascend_adapt: %s: is installed but cannot be imported (%s), treated as not installed", package, error
        )
        return False
    return True


@wrap(
    "transformers.utils.import_utils:is_torch_npu_available",
    requires="transformers>=4.37",
    devices=("cpu", "cuda"),
    why="it imports torch_npu without a guard; without CANN, the import raises an error, and no model can be imported",
    until="transformers treats a torch_npu that cannot be imported as not installed, as accelerate does",
    without="crash",
    symptom=Symptom("import torch_npu"),
)
def broken_torch_npu_is_unavailable(call: Call) -> bool:
    """Return False if torch_npu cannot be imported, else the result of transformers' check."""
    return not _is_broken("torch_npu") and bool(call.proceed())
