"""The inputs, output and state of a module, saved for a replay."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ascend_adapt import regular_files
from ascend_adapt.errors import AlignmentError, one_line


def save(folder: Path, step: int, name: str, call: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    """Save one call of a module, without values that are neither tensors nor plain data."""
    path = path_of(folder, step, name, call)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "args": _plain(args),
        "kwargs": _plain(kwargs),
        "output": _plain(output),
        "state": {key: _plain(value) for key, value in module.state_dict().items()},
        "training": module.training,
    }
    torch.save(kept, path)


def load(folder: str | Path, name: str, step: int = 1, call: int = 0) -> dict[str, Any]:
    """Return the saved data of one call: class, args, kwargs, output, state and training.

    Args:
        folder: a rank's folder of a recording, such as DIR/rank-0.

    Raises:
        AlignmentError: the call was not saved, or the file contains objects other than tensors and plain data.
    """
    path = path_of(Path(folder), step, name, call)
    try:
        with regular_files.open_binary(path) as stream:
            kept: dict[str, Any] = torch.load(stream, map_location="cpu", weights_only=True)
    except OSError as error:
        raise AlignmentError(
            f"{path}: {one_line(error)}, expected the inputs of {name} in step {step} — record them with "
            f"ascend-run --record DIR --record-steps {step} --record-inputs {name}"
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise AlignmentError(
            f"{path}: {one_line(error)[:300]}, expected tensors and plain data — record again"
        ) from error
    return kept


def path_of(folder: Path, step: int, name: str, call: int) -> Path:
    """Return the path of the saved inputs of one call."""
    return folder / "inputs" / f"step-{step}.{name or 'model'}.{call}.pt"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_plain(each) for each in value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return None
