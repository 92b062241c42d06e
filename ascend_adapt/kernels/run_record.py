"""Kernel choices that the ranks of a job share: small JSON files in the run directory, written once.

A collective could hang, because pipeline stages make different calls at different times. Instead, the first rank that
needs a choice writes it atomically. The other ranks read it, and so does the next job with this run directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import KernelError

FOLDER = "kernel-choices"


def read(subject: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the recorded facts about ``subject``, or None without such facts or without a run directory.

    Raises:
        KernelError: the file is damaged.
    """
    path = _path(subject)
    return None if path is None else _read(path)


def hold(subject: Mapping[str, Any], mine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record ``mine`` about ``subject``, unless another rank was first. Return the record that all ranks use.

    Raises:
        KernelError: the run directory cannot be written.
    """
    path = _path(subject)
    if path is None:
        return mine
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as aside:
            json.dump({**subject, **mine}, aside, indent=1)
            aside.flush()
            os.link(aside.name, path)  # unlike rename, link never overwrites a file
    except FileExistsError:
        pass
    except OSError as error:
        raise KernelError(
            f"{path}: {error.strerror}, expected to write the kernel choice that all ranks share — choose another "
            "--log-dir"
        ) from error
    held = _read(path)
    return mine if held is None else held


def card(tensor: Any) -> str:
    """Return the model name of a tensor's device. Ranks on different models need not agree."""
    import torch

    if tensor.device.type == "cuda":
        return str(torch.cuda.get_device_name(tensor.device))
    return str(tensor.device.type)


def _path(subject: Mapping[str, Any]) -> Path | None:
    folder = os.environ.get("ASCEND_ADAPT_RUN_DIR")
    name = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]
    return Path(folder, FOLDER, f"{name}.json") if folder else None


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        data = json.loads(regular_files.read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise KernelError(f"{path}: is not a kernel choice ({error}) — remove it") from error
    if not isinstance(data, dict):
        raise KernelError(f"{path}: is not a kernel choice ({data!r}) — remove it")
    return data
