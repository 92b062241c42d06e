"""Metrics in the rows of a native run's metrics.jsonl and evaluations.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ascend_adapt.report import metrics
from ascend_adapt.report.log_lines import Point

_COLUMNS = {
    "learning_rate": (metrics.LEARNING_RATE, 1.0),
    "grad_norm": (metrics.GRAD_NORM, 1.0),
    "loss_scale": (metrics.LOSS_SCALE, 1.0),
    "samples_per_s": (metrics.SAMPLES_PER_S, 1.0),
    "tokens_per_s": (metrics.TOKENS_PER_S, 1.0),
    "model_tflops": (metrics.TFLOPS, 1.0),
    "mfu": (metrics.MFU, 100.0),
    "peak_memory_bytes": (metrics.MEMORY, 1e-9),
}
_STRAGGLERS = {"samples": metrics.SAMPLES_STRAGGLERS, "mlp": metrics.MLP_STRAGGLERS}
SLOWEST, MEDIAN = "slowest rank", "median of the ranks"


def points(row: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the values of a row. JSON has no NaN or Inf, so a row has null instead."""
    x = float(row["iteration"])
    if "part" in row:
        if row["part"] == "valid":
            yield Point("native", metrics.VALIDATION, x, _value(row["lm_loss"]))
        return
    # If a row has neither a loss nor NaN, every step of the interval was skipped.
    if row["lm_loss"] is not None or row["nan"] or not row["skipped"]:
        yield Point("native", metrics.LOSS, x, _value(row["lm_loss"]))
    for column, (metric, scale) in _COLUMNS.items():
        if row.get(column) is not None or column == "grad_norm":
            yield Point("native", metric, x, _value(row.get(column)) * scale)
    for part, metric in _STRAGGLERS.items():
        if times := (row.get("ranks") or {}).get(part):
            yield Point("native", metric, x, float(times["most"]) * 1e3, variant=SLOWEST)
            yield Point("native", metric, x, float(times["median"]) * 1e3, variant=MEDIAN)


def _value(value: float | None) -> float:
    return math.nan if value is None else float(value)
