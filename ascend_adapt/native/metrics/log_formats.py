"""Log lines in each upstream's format, byte for byte, so that existing log parsers read them.

Sources: Megatron-LM@v2.5 megatron/training.py and @core_v0.9.0 megatron/training/training.py training_log; bigscience
Megatron-DeepSpeed@8387ae17 and deepspeedai Megatron-DeepSpeed@4efb479d megatron/training.py; gpt-neox@9610391a
megatron/logging.py; THUDM/GLM@4f61ed7 pretrain_glm.py; OneFlow-Benchmark@de4698a7 oneflow_gpt/util.py.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_adapt import extensions
from ascend_adapt.config.train_config import LOG_FORMATS, TrainConfig


@dataclass(frozen=True)
class Interval:
    """Metrics of one log interval: values of its last step, and means over its steps.

    ``lm_loss`` is the mean over the steps that were not skipped, or None if all were skipped. ``seconds`` is the mean
    time of an iteration. ``tflops`` is TFLOP/s per device by the dialect's formula.
    """

    iteration: int
    consumed_samples: int
    steps: int
    seconds: float
    samples: int
    learning_rate: float
    lm_loss: float | None
    grad_norm: float
    loss_scale: float
    skipped: int
    nan: int
    samples_per_s: float
    tokens_per_s: float
    tflops: float
    model_tflops: float
    mfu: float | None
    num_zeros: float | None = None
    params_norm: float | None = None
    peak_memory_bytes: int | None = None
    """Peak memory of the logging rank's device."""
    ranks: Mapping[str, Any] | None = None
    """Straggler report for each part of a step, in seconds; None for a single rank."""

    def to_json(self) -> dict[str, Any]:
        """Return the row of metrics.jsonl."""
        names = (
            "iteration consumed_samples lm_loss learning_rate grad_norm loss_scale skipped nan samples_per_s "
            "tokens_per_s tflops model_tflops mfu num_zeros params_norm peak_memory_bytes ranks"
        )
        optional = ("num_zeros", "params_norm", "peak_memory_bytes", "ranks")
        values = {name: getattr(self, name) for name in names.split()}
        return {name: value for name, value in values.items() if value is not None or name not in optional}


def step_lines(config: TrainConfig, interval: Interval, *, first: bool) -> list[str]:
    """Return the log lines of an interval; a table has its header above the ``first`` row."""
    return _format(config).step(config, interval, first)


def evaluation_lines(config: TrainConfig, iteration: int, part: str, loss: float) -> list[str]:
    """Return the log lines of an evaluation: ``part`` is "valid" during training, "test" at its end."""
    return _format(config).evaluation(iteration, part, loss)


@dataclass(frozen=True)
class LogFormat:
    """Log format of a training program. Each one, built-in or not, is an entry point in ``ascend_adapt.log_formats``.

    ``step`` and ``evaluation`` return the lines of ``step_lines`` and ``evaluation_lines``.
    """

    step: Callable[[TrainConfig, Interval, bool], list[str]]
    evaluation: Callable[[int, str, float], list[str]]


def _format(config: TrainConfig) -> LogFormat:
    found: LogFormat = extensions.load(LOG_FORMATS, config.logging.format, built_in="megatron")
    return found


def _of_megatron(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        f" iteration {interval.iteration:8d}/{config.iterations:8d}",
        f" consumed samples: {interval.consumed_samples:12d}",
        f" elapsed time per iteration (ms): {interval.seconds * 1000.0:.1f}",
        f" learning rate: {interval.learning_rate:.3E}",
        f" global batch size: {interval.samples:5d}",
        *_loss(interval),
        f" loss scale: {interval.loss_scale:.1f}",
        *_norms(interval),
        *_counts(interval),
    ]
    return [_joined(parts)]


def _of_mcore(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {interval.iteration:8d}/{config.iterations:8d}",
        f" consumed samples: {interval.consumed_samples:12d}",
        f" elapsed time per iteration (ms): {interval.seconds * 1000.0:.1f}",
        f" throughput per GPU (TFLOP/s/GPU): {interval.tflops:.1f}",
        f" learning rate: {interval.learning_rate:.6E}",
        f" global batch size: {interval.samples:5d}",
        *_loss(interval),
        f" loss scale: {interval.loss_scale:.1f}",
        *_norms(interval),
        *_counts(interval),
    ]
    return [_joined(parts)]


def _of_bigscience(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        *_with_tokens(config, interval),
        f" elapsed time per iteration (s): {interval.seconds:.2f}",
        f" learning rate: {interval.learning_rate:.3E}",
        f" global batch size: {interval.samples:5d}",
        *_loss(interval),
        *([f" loss scale: {interval.loss_scale:.1f}"] if config.precision.dtype == "fp16" else []),
        *_norms(interval),
        *_counts(interval),
        f" samples per second: {interval.samples_per_s:.3f}",
        f" TFLOPs: {interval.tflops:.2f}",
    ]
    return [_joined(parts)]


def _of_deepspeed(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        *_with_tokens(config, interval),
        f" elapsed time per iteration (ms): {interval.seconds * 1000.0:.1f}",
        f" learning rate: {interval.learning_rate:.3E}",
        f" global batch size: {interval.samples:5d}",
        *_loss(interval),
        f" loss scale: {interval.loss_scale:.1f}",
        *_norms(interval),
        f" actual seqlen: {config.data.seq_length:5d}",
        *_counts(interval),
        f" samples per second: {interval.samples_per_s:.3f}",
        f" tokens per gpu per second (tgs): {interval.tokens_per_s / config.parallel.world_size:.3f}",
        f" TFLOPs: {interval.tflops:.2f}",
    ]
    return [_joined(parts)]


def _of_neox(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        f" samples/sec: {interval.samples_per_s:.3f}",
        f" iteration {interval.iteration:8d}/{config.iterations:8d}",
        f" elapsed time per iteration (ms): {interval.seconds * 1000.0:.1f}",
        f" learning rate: {interval.learning_rate:.3E}",
        f" approx flops per GPU: {_human_readable(interval.tflops * 1e12)}",
        *([] if interval.lm_loss is None else [f" lm_loss: {interval.lm_loss:.6E}"]),
        *([f" loss scale: {interval.loss_scale:.1f}"] if config.precision.dtype == "fp16" else []),
        *_counts(interval),
    ]
    return [_joined(parts)]


def _of_glm(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    parts = [
        f" iteration {interval.iteration:8d}/{config.iterations:8d}",
        f" elapsed time per iteration (ms): {interval.seconds * 1000.0:.1f}",
        f" learning rate {interval.learning_rate:.3E}",
        *([] if interval.lm_loss is None else [f" lm loss {interval.lm_loss:.6E}"]),
        f" loss scale {interval.loss_scale:.1f}",
    ]
    return [_joined(parts)]


def _of_oneflow(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    micro_batches = interval.consumed_samples // (config.batch.micro * config.parallel.data)
    values = (interval.iteration, micro_batches, interval.consumed_samples)
    loss = "skipped" if interval.lm_loss is None else f"{interval.lm_loss:.5f}"
    cells = [*map(str, values), f"{interval.samples_per_s:.5f}", f"{interval.seconds:.5f}", loss]
    columns = (("step", 8), ("micro_batches", 15), ("samples", 15), ("throughput", 10), ("latency", 10), ("loss", 10))
    if not config.logging.table:
        return ["".join(f"{name}={cell}," for (name, _), cell in zip(columns, cells, strict=True))]
    head = [
        "".join(f"| {name.ljust(width)} " for name, width in columns) + "|",
        "".join(f"| {'-' * width} " for _, width in columns) + "|",
    ]
    row = "".join(f"| {cell.ljust(width)} " for cell, (_, width) in zip(cells, columns, strict=True)) + "|"
    return [*head, row] if first else [row]


def _of_json(config: TrainConfig, interval: Interval, first: bool) -> list[str]:
    return [json.dumps(interval.to_json())]


def _evaluation_of_megatron(iteration: int, part: str, loss: float) -> list[str]:
    return _framed(" " + _evaluation_line(iteration, part, loss))


def _evaluation_of_bigscience(iteration: int, part: str, loss: float) -> list[str]:
    return _framed(_evaluation_line(iteration, part, loss))


def _evaluation_of_neox(iteration: int, part: str, loss: float) -> list[str]:
    name = "test" if part == "test" else "validation"
    values = f"lm_loss value: {loss:.6E} | lm_loss_ppl value: {_perplexity(loss):.6E}"
    return _framed(f" {name} results at {_place(iteration, part)} | {values} | ")


def _evaluation_of_json(iteration: int, part: str, loss: float) -> list[str]:
    values = {"iteration": iteration, "part": part, "lm_loss": loss, "lm_loss_ppl": _perplexity(loss)}
    return [json.dumps(values)]


def _evaluation_line(iteration: int, part: str, loss: float) -> str:
    values = f"lm loss value: {loss:.6E} | lm loss PPL: {_perplexity(loss):.6E}"
    return f"validation loss at {_place(iteration, part)} | {values} | "


def _place(iteration: int, part: str) -> str:
    return "the end of training for test data" if part == "test" else f"iteration {iteration}"


def _perplexity(loss: float) -> float:
    return math.exp(min(20, loss))


def _framed(line: str) -> list[str]:
    rule = "-" * (len(line) + 1)
    return [rule, line, rule]


def _with_tokens(config: TrainConfig, interval: Interval) -> list[str]:
    return [
        f" iteration {interval.iteration:8d}/{config.iterations:8d}",
        f" consumed samples: {interval.consumed_samples:12d}",
        f" consumed tokens: {interval.consumed_samples * config.data.seq_length:12d}",
    ]


def _loss(interval: Interval) -> list[str]:
    return [f" lm loss: {interval.lm_loss:.6E}"] if interval.lm_loss is not None and interval.lm_loss > 0 else []


def _norms(interval: Interval) -> list[str]:
    zeros = [] if interval.num_zeros is None else [f" num zeros: {interval.num_zeros:.1f}"]
    params = [] if interval.params_norm is None else [f" params norm: {interval.params_norm:.3f}"]
    return [f" grad norm: {interval.grad_norm:.3f}", *zeros, *params]


def _counts(interval: Interval) -> list[str]:
    return [f" number of skipped iterations: {interval.skipped:3d}", f" number of nan iterations: {interval.nan:3d}"]


def _joined(parts: list[str]) -> str:
    return " |".join(parts) + " |"


def _human_readable(flops: float) -> str:
    for unit in ("", "KFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS", "EFLOPS"):
        if abs(flops) < 1000.0:
            return f"{flops:3.1f}{unit}"
        flops /= 1000.0
    return f"{flops:.1f}ZFLOPS"


MEGATRON = LogFormat(_of_megatron, _evaluation_of_megatron)
MCORE = LogFormat(_of_mcore, _evaluation_of_megatron)
BIGSCIENCE = LogFormat(_of_bigscience, _evaluation_of_bigscience)
DEEPSPEED = LogFormat(_of_deepspeed, _evaluation_of_bigscience)
NEOX = LogFormat(_of_neox, _evaluation_of_neox)
GLM = LogFormat(_of_glm, _evaluation_of_megatron)
ONEFLOW = LogFormat(_of_oneflow, _evaluation_of_megatron)
JSON = LogFormat(_of_json, _evaluation_of_json)
