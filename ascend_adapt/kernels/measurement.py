"""The fastest of several backends for a class of shapes: timed once, and the same for every rank of a job.

Pipeline stages meet different calls at different times, so a collective could hang. The choice is a file in the run
directory instead: whoever needs one first measures and writes it, as a whole; the others read it, as does the next
job that is given this directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.errors import KernelError

FOLDER = "kernel-choices"
CAPTURED = "the call is being captured"
_WARM_UP, _TIMED = 3, 10

_known: dict[str, Measured] = {}


@dataclass(frozen=True)
class Measured:
    """The outcome of one measurement."""

    backend: str
    seconds: Mapping[str, float]
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """Why this backend, in words."""
        return "fastest: " + ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in self.seconds.items())


def why_not(tensor: Any) -> str:
    """Return why nothing can be measured here and now, or ""."""
    import torch

    if tensor.device.type != "cuda":
        return f"on {tensor.device.type} nothing is measured"
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return CAPTURED
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not os.environ.get("ASCEND_ADAPT_RUN_DIR"):
        return "several ranks, and no run directory to agree in (ascend-run gives one)"
    return ""


def fastest(kernel: str, call: Any, runs: Mapping[str, Callable[[Any], Any]]) -> Measured:
    """Return the fastest of ``runs`` on calls of this class of shapes, measured now unless it is known.

    Raises:
        KernelError: every one of them failed.
    """
    import torch

    facts = {
        "kernel": kernel,
        "call": call.describe(rounded=True),
        "card": torch.cuda.get_device_name(call.tensor().device),
        "torch": torch.__version__,
        "candidates": list(runs),
        "gradients": torch.is_grad_enabled(),
    }
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    if name not in _known:
        folder = os.environ.get("ASCEND_ADAPT_RUN_DIR")
        path = Path(folder, FOLDER, f"{name}.json") if folder else None
        _known[name] = (path and _read(path)) or _agree(path, _measure(call, runs), facts)
    return _known[name]


def _measure(call: Any, runs: Mapping[str, Callable[[Any], Any]]) -> Measured:
    import torch

    seconds, failed = {}, []
    with torch.random.fork_rng(devices=[call.tensor().device]):
        for name, run in runs.items():
            try:
                seconds[name] = _time(call, run)
            except (RuntimeError, KernelError) as error:  # among them torch.OutOfMemoryError
                failed.append((name, f"it failed when it was measured: {' '.join(str(error).split())[:200]}"))
    if not seconds:
        raise KernelError(f"{call.describe()}: {'; '.join(f'{name}: {why}' for name, why in failed)} — change the call")
    return Measured(min(seconds, key=seconds.__getitem__), seconds, tuple(failed))


def _time(call: Any, run: Callable[[Any], Any]) -> float:
    """Seconds of one forward, and backward if there are gradients, on copies that share the data."""
    import torch

    def detached(value: Any) -> Any:
        return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    copy = type(call)(**{name: detached(value) for name, value in vars(call).items()})
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(_WARM_UP + _TIMED):
        if turn == _WARM_UP:
            start.record()
        result = run(copy)
        if result.requires_grad:
            result.backward(result.detach())
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / _TIMED


def _read(path: Path) -> Measured | None:
    try:
        data = json.loads(path.read_text())
        return Measured(data["backend"], data["seconds"], tuple((name, why) for name, why in data["failed"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KernelError(f"{path}: is not a kernel choice ({error}) — remove it") from error


def _agree(path: Path | None, mine: Measured, facts: Mapping[str, Any]) -> Measured:
    """Write what was measured here, unless another rank was first; return what holds for all."""
    if path is None:
        return mine
    told = {**facts, "backend": mine.backend, "seconds": dict(mine.seconds), "failed": mine.failed}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as aside:
            json.dump(told, aside, indent=1)
            aside.flush()
            os.link(aside.name, path)  # unlike rename, never over what is there
    except FileExistsError:
        pass
    except OSError as error:
        raise KernelError(f"{path}: {error.strerror} — the ranks must agree on kernels, choose a --log-dir") from error
    held = _read(path)
    return held if held is not None else mine
