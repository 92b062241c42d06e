"""Metrics in the log lines of training programs.

Megatron-LM, both Megatron-DeepSpeed forks, GPT-NeoX, GLM and OneFlow print the formats whose sources are named in
``ascend_adapt.native.metrics.log_formats``. The other formats are those of DeepSpeed's timer and pipeline engine, the
dictionaries of Hugging Face's Trainer, JSON lines, and any line with a step and a loss, such as nanoGPT's.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ascend_adapt.report import metrics
from ascend_adapt.report.metrics import Metric


class Point(NamedTuple):
    """One value of a metric at ``x``, in the unit ``axis`` (iterations or epochs). ``variant`` names a dataset."""

    format: str
    metric: Metric
    x: float
    y: float
    axis: str = "iteration"
    variant: str = ""


AT_EVALUATIONS = "at evaluations"
FORMATS = ("native", "megatron", "trainer", "json", "deepspeed", "step")
"""Formats in order of preference. If two formats give the same metric equally often, the first is drawn.

Formats are not entry points, because a third-party program can print JSON lines, or lines with a step and a loss.
"""

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b"
_LONGEST = 4000
"""Maximum length of a line. Longer lines are dumps of configurations, not metrics."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MEGATRON = re.compile(r"iteration\s+(\d+)/\s*\d+ \|")
_FIELD = re.compile(rf"\s*(.+?):? +({_NUMBER})\s*([KMGTPEZ]?FLOPS)?\s*", re.I)
_VALIDATION = re.compile(
    rf"validation (?:loss|results) at iteration (\d+)(?: on (?![^|]*test set)([^|]+?))? \| "
    rf"(?:lm loss|lm_loss|LM loss)(?: value)?: ({_NUMBER})"
)
_MEMORY = re.compile(rf"after (\d+) iterations\)? memory \(MB\) \|.*?max allocated: ({_NUMBER})")
_TIMER = re.compile(
    rf"global_step=(\d+), RunningAvgSamplesPerSec=\S+, CurrSamplesPerSec=({_NUMBER})"
    rf"(?:.*MaxMemAllocated=({_NUMBER})GB)?"
)
_DICTIONARY = re.compile(r"\{'[^{}]*\}")
_STEP = re.compile(r"\b(?:global_step|iteration|iter|steps?)\b\s*[:=#]?\s*(\d+)|^\s*(\d+) \| loss", re.I)

_MEGATRON_FIELDS = {
    "lm loss": metrics.LOSS,
    "lm_loss": metrics.LOSS,
    "loss": metrics.LOSS,
    "learning rate": metrics.LEARNING_RATE,
    "grad norm": metrics.GRAD_NORM,
    "loss scale": metrics.LOSS_SCALE,
    "samples per second": metrics.SAMPLES_PER_S,
    "samples/sec": metrics.SAMPLES_PER_S,
    "elapsed time per iteration (s)": metrics.SECONDS,
    "tflops": metrics.TFLOPS,
    "throughput per gpu (tflop/s/gpu)": metrics.TFLOPS,
    "approx flops per gpu": metrics.TFLOPS,
}
_KEYS = {
    "loss": metrics.LOSS,
    "train_loss": metrics.LOSS,
    "train/loss": metrics.LOSS,
    "lm_loss": metrics.LOSS,
    "eval_loss": metrics.VALIDATION,
    "val_loss": metrics.VALIDATION,
    "eval/loss": metrics.VALIDATION,
    "val/loss": metrics.VALIDATION,
    "learning_rate": metrics.LEARNING_RATE,
    "lr": metrics.LEARNING_RATE,
    "train/lr": metrics.LEARNING_RATE,
    "grad_norm": metrics.GRAD_NORM,
    "loss_scale": metrics.LOSS_SCALE,
    "samples_per_s": metrics.SAMPLES_PER_S,
    "tokens_per_s": metrics.TOKENS_PER_S,
    "tokens_per_second": metrics.TOKENS_PER_S,
}
_STEP_KEYS = ("iteration", "global_step", "step", "iter")
# Names in lines of the format "step". Longer names come first, so that "val loss" is not read as "loss".
_NAMES = {
    r"(?:val(?:id(?:ation)?)?|eval)[ _]?loss": metrics.VALIDATION,
    r"loss train|(?:train(?:ing)?[ _]|lm[ _])?loss": metrics.LOSS,
    r"loss[ _]scale": metrics.LOSS_SCALE,
    r"lr|learning[ _]rate": metrics.LEARNING_RATE,
    r"(?:grad(?:ient)?[ _]?)?norm": metrics.GRAD_NORM,
    r"tps|tok(?:en)?s?/s(?:ec)?|tokens per second": metrics.TOKENS_PER_S,
    r"samples/s(?:ec)?|samples per second|throughput": metrics.SAMPLES_PER_S,
    r"tflops": metrics.TFLOPS,
    r"mfu": metrics.MFU,
    r"(?:peak |max )?mem(?:ory)?": metrics.MEMORY,
    r"(?:iter |step )?time(?: \(s\))?|dt|latency": metrics.SECONDS,
}
_NAMED = re.compile(
    r"(?<![\w/])(?:" + "|".join(f"(?P<n{number}>{name})" for number, name in enumerate(_NAMES)) + r")"
    rf"\s*[:=]?\s*\[?(?P<value>{_NUMBER})\s*(?P<unit>%|ms|us|s|GiB|GB|MiB|MB)?(?![\w])",
    re.I,
)
_UNITS = {"ms": 1e-3, "us": 1e-6, "MB": 1e-3, "MiB": 2**20 / 1e9, "GiB": 2**30 / 1e9}
_FLOPS = {"": 1e-12, "K": 1e-9, "M": 1e-6, "G": 1e-3, "T": 1.0, "P": 1e3, "E": 1e6, "Z": 1e9}


def points(line: str) -> list[Point]:
    """Return the values in a log line, or nothing if the line has no metrics. NaN and Inf are values."""
    if len(line) > _LONGEST or not ("loss" in line or "memory" in line or "SamplesPerSec" in line or "steps: " in line):
        return []
    line = _ANSI.sub("", line)
    for read in (_megatron, _validation, _memory, _timer, _trainer, _json, _named):
        if found := [one for one in read(line) if one.y >= 0 or not math.isfinite(one.y) or one.metric is metrics.LOSS]:
            return found
    return []


def _megatron(line: str) -> Iterator[Point]:
    match = _MEGATRON.search(line)
    if match is None:
        return
    iteration, fields = _number(match[1]), dict(_fields(line))
    for name, (value, unit) in fields.items():
        metric = _MEGATRON_FIELDS.get(name)
        if metric is metrics.TFLOPS and name.startswith("approx"):
            value *= _FLOPS[unit[:-5].upper()] if unit else 1e-12
        if metric is not None:
            yield Point("megatron", metric, iteration, value)
    if milliseconds := fields.get("elapsed time per iteration (ms)"):
        yield Point("megatron", metrics.SECONDS, iteration, milliseconds[0] / 1e3)
        # Megatron-LM does not print the throughput.
        batch = fields.get("global batch size")
        if batch and milliseconds[0] and not {"samples per second", "samples/sec"} & fields.keys():
            yield Point("megatron", metrics.SAMPLES_PER_S, iteration, batch[0] / milliseconds[0] * 1e3)


def _fields(line: str) -> Iterator[tuple[str, tuple[float, str]]]:
    for part in line.split("|"):
        if match := _FIELD.fullmatch(part):
            yield match[1].lower(), (_number(match[2]), match[3] or "")


def _validation(line: str) -> Iterator[Point]:
    if match := _VALIDATION.search(line):
        yield Point("megatron", metrics.VALIDATION, _number(match[1]), _number(match[3]), variant=match[2] or "")


def _memory(line: str) -> Iterator[Point]:
    if match := _MEMORY.search(line):
        yield Point("megatron", metrics.MEMORY, _number(match[1]), _number(match[2]) * _UNITS["MiB"])


def _timer(line: str) -> Iterator[Point]:
    if match := _TIMER.search(line):
        yield Point("deepspeed", metrics.SAMPLES_PER_S, _number(match[1]), _number(match[2]))
        if match[3]:
            yield Point("deepspeed", metrics.MEMORY, _number(match[1]), _number(match[3]))


def _trainer(line: str) -> Iterator[Point]:
    """Yield the values of a line such as `{'loss': 6.27, 'epoch': 0.12}`. Newer releases quote the values."""
    for match in _DICTIONARY.finditer(line):
        try:
            values = ast.literal_eval(re.sub(r"(?<=: )(nan|inf)\b", r"'\1'", match[0]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        # The last line has means over the entire run.
        if isinstance(values, dict) and "train_runtime" not in values:
            yield from _of_keys("trainer", values)


def _json(line: str) -> Iterator[Point]:
    if (start := line.find("{")) >= 0 and line.rstrip().endswith("}"):
        try:
            values = json.loads(line[start:])
        except (ValueError, RecursionError):
            return
        if isinstance(values, dict):
            yield from _of_keys("json", values)


def _of_keys(format_: str, values: Mapping[str, Any]) -> Iterator[Point]:
    axis = next((key for key in (*_STEP_KEYS, "epoch") if _is_number(values.get(key))), None)
    if axis is None:
        return
    unit, x = "epoch" if axis == "epoch" else "iteration", _number(values[axis])
    is_validation = values.get("part") == "valid"
    for key, metric in _KEYS.items():
        if _is_number(values.get(key)):
            of_part = metrics.VALIDATION if is_validation and metric is metrics.LOSS else metric
            yield Point(format_, of_part, x, _number(values[key]), unit)


def _named(line: str) -> Iterator[Point]:
    step = _STEP.search(line)
    if step is None:
        return
    values: dict[Metric, float] = {}
    for match in _NAMED.finditer(line):
        metric = next(metric for number, metric in enumerate(_NAMES.values()) if match[f"n{number}"])
        values.setdefault(metric, _number(match["value"]) * _UNITS.get(match["unit"] or "", 1.0))
    if not {metrics.LOSS, metrics.VALIDATION} & values.keys():
        return
    for metric, value in values.items():
        # nanoGPT and other programs also estimate the training loss when they evaluate.
        is_estimate = metric is metrics.LOSS and metrics.VALIDATION in values
        yield Point("step", metric, _number(step[1] or step[2]), value, variant=AT_EVALUATIONS if is_estimate else "")


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(_NUMBER, value.strip(), re.I) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float:
    try:
        return float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except OverflowError:  # an integer in JSON, too large for a float
        return math.inf
