"""Loads upstream checkpoints on torch 2.6 and newer, with an allow list of the classes that upstream saves.

By default, ``torch.load`` only reads tensors and plain data (``weights_only=True``). This module allows other classes
that a code base saves, by name. Any other object in a file is refused, because unpickling it could run code. Users who
trust a file can opt out with torch's switch TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1. If a code base passes
``weights_only=False``, torch's TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 restricts it to the same list.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from ascend_adapt import pickled_enums
from ascend_adapt.errors import TrainingError

TRUSTS = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

# The state of numpy.random, as pickled by numpy 2 and by numpy 1.
_NUMPY = (
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.dtypes.UInt32DType",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray._reconstruct",
)
_PLAIN = ("argparse.Namespace", *_NUMPY)
DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)


@contextlib.contextmanager
def allowed(*names: str) -> Iterator[None]:
    """Context manager in which ``torch.load`` also reads the classes ``names``, and classes of argparse and numpy.

    Raises:
        TrainingError: a file names another class, even if upstream reacts to torch's error with ``sys.exit()``.
    """
    import torch

    if TRUSTS in os.environ:
        yield
        return
    try:
        with torch.serialization.safe_globals(
            [(pickled_enums.member, pickled_enums.GETATTR), *_resolved((*_PLAIN, *names))]
        ):
            yield
    except (pickle.UnpicklingError, SystemExit) as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise TrainingError(
            f"{_file(refusal)}: names {_global(refusal)}, expected tensors, plain data and the classes that the code "
            f"base itself saves — do not use this file, or, if you trust its author to run code here, set {TRUSTS}=1"
        ) from error


def _resolved(names: Iterable[str]) -> Iterator[tuple[Any, str]]:
    for name in names:
        module, _, attribute = name.rpartition(".")
        # Not every release of a code base has every class.
        with contextlib.suppress(ImportError, AttributeError):
            yield getattr(importlib.import_module(module), attribute), name


def _refusal(error: BaseException | None) -> pickle.UnpicklingError | None:
    while error is not None and not (isinstance(error, pickle.UnpicklingError) and "Weights only" in str(error)):
        error = error.__context__
    return error


def _file(error: BaseException) -> str:
    """Return the file that torch.load was reading, which torch's error does not name."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "torch.serialization" and frame.f_code.co_name == "load":
            return str(frame.f_locals["f"])
    return "the checkpoint"


def _global(error: BaseException) -> str:
    named = re.search(r"GLOBAL (\S+)|Trying to instantiate (\S+)|Unsupported operand (\S+)", str(error))
    if named:
        return str(next(filter(None, named.groups())))
    reason = re.search(r"WeightsUnpickler error:\s*(.+)", str(error))
    return f"an object that torch rejects ({reason[1] if reason else str(error).splitlines()[-1].strip()})"
