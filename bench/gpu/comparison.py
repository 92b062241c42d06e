"""Comparison rows: a call compared with another library's call, or a run compared with another run."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Compared:
    """One comparison; ``ratio`` is our time over the other's."""

    what: str
    ratio: float
    wanted: str = ""
    details: str = ""


def attempt(what: str, compare: Callable[[], Compared]) -> Compared:
    """Return the comparison, or the reason why it failed, so that the others continue."""
    try:
        return compare()
    except Exception as error:
        return Compared(what, float("nan"), details=f"failed: {type(error).__name__}: {str(error)[:300]}")


def report(peer: str, compared: Sequence[Compared]) -> None:
    """Print the row's result as one JSON line, with the peer's version and settings."""
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    every = [asdict(one) for one in compared]
    print(json.dumps({"card": card, "torch": torch.__version__, "peer": peer, "compared": every}), flush=True)


AHEAD = 40_000_000
"""Cycles for which the device sleeps (20 ms at 2 GHz) while the host launches all calls of a measurement."""


def medians_ms(
    sides: dict[str, Callable[[], Any]], rounds: int = 15, inner: int = 5, *, device_only: bool = False
) -> dict[str, float]:
    """Return the median milliseconds per call of each side; the order alternates every round.

    ``device_only`` excludes the host's time, which exceeds the device's time for small calls. In a training step the
    host runs ahead, or the step is a CUDA graph.
    """
    import torch

    on_gpu, order = torch.cuda.is_available(), random.Random(0)
    for run in sides.values():
        for _ in range(3):
            run()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in order.sample(list(sides.items()), len(sides)):
            taken[name].append(_on_gpu(run, inner, device_only) if on_gpu else _on_cpu(run, inner))
    return {name: statistics.median(values) for name, values in taken.items()}


def host_us(sides: dict[str, Callable[[], Any]], rounds: int = 15, inner: int = 20) -> dict[str, float]:
    """Return the host's median time to launch each side, in microseconds per call, while the device sleeps."""
    import torch

    taken: dict[str, list[float]] = {name: [] for name in sides}
    for name, run in [*sides.items()] * rounds:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda._sleep(AHEAD)
        taken[name].append(_on_cpu(run, inner) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def _on_gpu(run: Callable[[], Any], inner: int, device_only: bool) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if device_only:
        torch.cuda._sleep(AHEAD)
    start.record()
    for _ in range(inner):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / inner


def _on_cpu(run: Callable[[], Any], inner: int) -> float:
    began = time.perf_counter()
    for _ in range(inner):
        run()
    return (time.perf_counter() - began) * 1e3 / inner


def with_backward(function: Callable[..., Any], tensors: list[Any], grad: Any) -> Callable[[], None]:
    """Return a function that calls ``function`` and its backward pass; ``grad`` is a tensor, or a tensor per result."""
    import torch

    def run() -> None:
        for tensor in tensors:
            tensor.grad = None
        torch.autograd.backward(function(*tensors), grad)

    return run
