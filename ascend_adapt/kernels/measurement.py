"""Autotuning: times several backends once for a class of shapes. Every rank of a job gets the same choice."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ascend_adapt.errors import KernelError
from ascend_adapt.kernels import run_record, trial
from ascend_adapt.whole_numbers import of_variable

CAPTURED = "the stream is being captured"
_TURNS, _WARM_UP, _TIMED = 3, 3, 5
"""Rounds of timing all backends in turn; the median counts. A changing device clock then affects all backends alike."""
_SLEEP = 10_000_000
"""Cycles that the device sleeps, 5 ms at 2 GHz: more than the host needs to launch all timed passes."""

_known: dict[tuple[Any, ...], Measured] = {}


@dataclass(frozen=True)
class Measured:
    """Result of one measurement."""

    backend: str
    seconds: Mapping[str, float]
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """The reason for the choice: the time of each backend."""
        return "fastest: " + ", ".join(f"{name} {value * 1e3:.3g} ms" for name, value in self.seconds.items())


def why_not(tensor: Any) -> str:
    """Return why backends cannot be measured now, or ""."""
    import torch

    if tensor.device.type != "cuda":
        return f"backends are not measured on {tensor.device.type}"
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return CAPTURED
    if of_variable(os.environ, "WORLD_SIZE", 1) > 1 and not os.environ.get("ASCEND_ADAPT_RUN_DIR"):
        return "several ranks without a run directory to share the choice in (ascend-run sets one)"
    return ""


def fastest(kernel: str, call: Any, runs: Mapping[str, Callable[[Any], Any]]) -> Measured:
    """Return the fastest of ``runs`` for this class of shapes, measured now unless the result is known.

    Raises:
        KernelError: all backends failed.
    """
    import torch

    subject = {
        "kernel": kernel,
        "call": call.describe(rounded=True),
        "card": run_record.card(call.tensor()),
        "torch": torch.__version__,
        "candidates": list(runs),
        "gradients": torch.is_grad_enabled(),
    }
    key = (kernel, subject["call"], subject["card"], *runs, subject["gradients"])
    if key not in _known:
        held = run_record.read(subject)
        if held is None:
            held = run_record.hold(subject, asdict(_measure(call, runs)))
        _known[key] = _measured(held, runs)
    return _known[key]


def _measured(held: Mapping[str, Any], runs: Mapping[str, Any]) -> Measured:
    try:
        failed = tuple((str(name), str(why)) for name, why in held["failed"])
        measured = Measured(held["backend"], {name: float(value) for name, value in held["seconds"].items()}, failed)
        if measured.backend in runs:
            return measured
        raise ValueError(f"backend {measured.backend!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KernelError(f"kernel-choices in the run directory: {dict(held)!r} ({error}) — remove them") from error


def _measure(call: Any, runs: Mapping[str, Callable[[Any], Any]]) -> Measured:
    import torch

    with_gradients = torch.is_grad_enabled()
    return trial.aside(lambda: _race(call, runs, with_gradients), call.tensor().device)


def _race(call: Any, runs: Mapping[str, Callable[[Any], Any]], with_gradients: bool) -> Measured:
    import torch

    turns: dict[str, list[float]] = {name: [] for name in runs}
    failed: list[tuple[str, str]] = []
    with torch.set_grad_enabled(with_gradients), torch.random.fork_rng(devices=[call.tensor().device]):
        for name in list(runs) * _TURNS:
            if name not in turns:
                continue
            try:
                turns[name].append(_time(call, runs[name]))
            except (RuntimeError, KernelError) as error:  # includes torch.OutOfMemoryError
                del turns[name]
                failed.append((name, f"it failed when it was measured: {' '.join(str(error).split())[:200]}"))
    if not turns:
        raise KernelError(f"{call.describe()}: {'; '.join(f'{name}: {why}' for name, why in failed)} — change the call")
    seconds = {name: statistics.median(taken) for name, taken in turns.items()}
    return Measured(min(seconds, key=seconds.__getitem__), seconds, tuple(failed))


def _time(call: Any, run: Callable[[Any], Any]) -> float:
    """Return the device time in seconds of one forward pass, and of backward if the call needs gradients.

    The copies share their data. The device sleeps first, so that the host runs ahead of it, as in training. Otherwise
    the time of a slow host would be measured.
    """
    import torch

    def detached(value: Any) -> Any:
        return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    copy = type(call)(**{name: detached(value) for name, value in vars(call).items()})
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(_WARM_UP + _TIMED):
        if turn == _WARM_UP:
            torch.cuda._sleep(_SLEEP)
            start.record()
        result = run(copy)
        if result.requires_grad:
            result.backward(result.detach())
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / _TIMED
