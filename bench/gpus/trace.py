"""GPU time of a step by kind, from a Chrome trace of torch's profiler: ``python -m bench.gpus.trace TRACE [STEPS]``.

Times are in ms per step, between the first and the last kernel of the trace. Kernels that overlap count once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Spans = list[tuple[float, float]]
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")


def summary(events: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Return the times of a step.

    ``span``: from the first kernel to the last; ``busy``: a kernel ran; ``communication``: a collective ran, including
    its wait for other ranks; ``exposed``: the part of communication without another running kernel; ``idle``: no kernel
    ran; ``idle_host``: the part of idle in which the next kernel had not been launched yet.
    """
    complete = [one for one in events if one.get("ph") == "X"]
    ran = sorted((one for one in complete if one.get("cat") in ON_GPU), key=lambda one: float(one["ts"]))
    if not ran:
        return {}
    launched = {_correlation(one): one["ts"] + one["dur"] for one in complete if one.get("cat") in LAUNCHES}
    every, talking = _union(map(_span, ran)), _union(_span(one) for one in ran if _communicates(one))
    computing = _union(_span(one) for one in ran if not _communicates(one))
    last, idle, idle_host = _span(ran[0])[1], 0.0, 0.0
    for one in ran:
        start, end = _span(one)
        if start > last:
            idle += start - last
            idle_host += min(max(launched.get(_correlation(one), last) - last, 0.0), start - last)
        last = max(last, end)
    times = {
        "span": last - _span(ran[0])[0],
        "busy": _length(every),
        "communication": _length(talking),
        "exposed": _length(every) - _length(computing),
        "idle": idle,
        "idle_host": idle_host,
    }
    kinds: Counter[str] = Counter()
    for one in ran:
        if _communicates(one):
            kinds[one["name"].split("(")[0]] += one["dur"]
    return {
        **{name: round(spent / steps / 1e3, 3) for name, spent in times.items()},
        "kernels": len(ran) / steps,
        "collectives": {name: round(spent / steps / 1e3, 3) for name, spent in kinds.most_common(4)},
    }


def _communicates(one: dict[str, Any]) -> bool:
    """Whether a kernel moves data between GPUs: NCCL's, copies from peer to peer, and torch's symmetric memory."""
    name = one["name"].lower()
    return "nccl" in name or "ptop" in name or "peer" in name or "symm_mem" in name


def _correlation(one: dict[str, Any]) -> Any:
    return one.get("args", {}).get("correlation")


def _span(one: dict[str, Any]) -> tuple[float, float]:
    return float(one["ts"]), float(one["ts"]) + float(one["dur"])


def _union(spans: Iterable[tuple[float, float]]) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def main() -> None:
    """Print the summary of a trace."""
    path, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print(json.dumps(summary(json.loads(path.read_text())["traceEvents"], steps), indent=1))


if __name__ == "__main__":
    main()
