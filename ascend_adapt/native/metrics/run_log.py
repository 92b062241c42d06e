"""Run log: terminal lines, metrics.jsonl, evaluations.jsonl, samples.jsonl, TensorBoard and Weights & Biases."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from ascend_adapt import regular_files
from ascend_adapt.config.flops import dialect_flops, model_flops, peak_flops
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.errors import type_and_message
from ascend_adapt.native.metrics.log_formats import Interval, evaluation_lines, step_lines
from ascend_adapt.native.metrics.progress_pipe import ProgressPipe
from ascend_adapt.native.metrics.step_metrics import StepMetrics


class RunLog:
    """Log of a run, written by rank 0; other ranks are silent.

    A failed write, such as on a full disk, is reported and the run continues. Call ``step`` after every iteration,
    ``evaluation`` after every evaluation, and ``close`` at the end. A resumed run appends to the same files; rows that
    an earlier run wrote after the checkpoint are dropped.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: str | Path,
        *,
        rank: int,
        device_name: str = "",
        output: TextIO | None = None,
        progress: ProgressPipe | None = None,
    ):
        self._config = config
        self._output = output or sys.stdout
        self._progress = progress
        self._peak = peak_flops(device_name)
        self._steps: list[StepMetrics] = []
        self._logged = 0
        self._writes = rank == 0
        self._folder = Path(run_dir)
        self._is_open = False
        self._files: dict[str, TextIO] = {}
        self._scalars: dict[str, Callable[[str, float, int], None]] = {}
        self._closing: dict[str, Callable[[], Any]] = {}
        self._failed: set[str] = set()
        if self._writes:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._try("tensorboard", lambda: self._open_tensorboard(self._folder))
            self._try("wandb", self._open_wandb)

    def say(self, text: str) -> None:
        """Print a line, on rank 0 only."""
        if self._writes:
            print(text, file=self._output, flush=True)

    def step(self, metrics: StepMetrics) -> None:
        """Record an iteration; if it ends a log interval, log the interval."""
        if not self._writes:
            return
        if not self._is_open:
            self._open_files(lambda row: row["iteration"] < metrics.iteration)
        self._steps.append(metrics)
        if self._progress is not None:
            self._progress.step(metrics)
        if metrics.iteration % self._config.logging.tensorboard_interval == 0:
            self._write_scalars(metrics)
        if metrics.iteration % self._config.logging.interval:
            return
        interval = self._interval()
        for line in step_lines(self._config, interval, first=not self._logged):
            self.say(line)
        self._keep("metrics", interval.to_json())
        for name in ("samples_per_s", "tokens_per_s", "tflops", "model_tflops"):
            self._scalar(f"runtime/{name}", getattr(interval, name), interval.iteration)
        self._logged += 1
        self._steps = []

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Log an evaluation: ``part`` is "valid", or "test" at the end of training."""
        if not self._writes:
            return
        if not self._is_open:
            # No step was left to train, so the earlier rows of this iteration are kept, except for this evaluation's.
            self._open_files(
                lambda row: row["iteration"] <= iteration and (row["iteration"], row.get("part")) != (iteration, part)
            )
        for line in evaluation_lines(self._config, iteration, part, loss):
            self.say(line)
        self._keep("evaluations", {"iteration": iteration, "part": part, "lm_loss": loss})
        self._scalar(f"{part}/lm_loss", loss, iteration)

    def text_samples(self, iteration: int, samples: Sequence[Any]) -> None:
        """Print text samples and write them to samples.jsonl, each with ``prompt`` and ``text``."""
        if not self._writes:
            return
        if not self._is_open:
            self._open_files(lambda row: row["iteration"] < iteration or "lm_loss" in row)
        for number, one in enumerate(samples, 1):
            self.say(f"sample {number} at iteration {iteration}: {json.dumps(one.prompt)} -> {json.dumps(one.text)}")
            self._keep("samples", {"iteration": iteration, "prompt": one.prompt, "text": one.text})

    def close(self) -> None:
        """Flush and close all outputs."""
        for name, file in self._files.items():
            self._try(name, file.close)
        for name, close in self._closing.items():
            # Closing a failed writer may wait for its thread forever.
            if name not in self._failed:
                self._try(name, close)
        if self._failed:
            self.say(f"warning: incomplete: {', '.join(sorted(self._failed))}, see the warnings above")

    def _try(self, name: str, write: Callable[[], Any]) -> None:
        """Write to one output; its first failure is reported and does not end the run."""
        try:
            write()
        except Exception as error:  # TensorBoard and Weights & Biases raise their own errors
            if name not in self._failed:
                self._failed.add(name)
                self.say(f"warning: {name}: {type_and_message(error)} — the run continues without it")

    def _interval(self) -> Interval:
        steps, config = self._steps, self._config
        last = steps[-1]
        good = [one.lm_loss for one in steps if not one.skipped]
        seconds = sum(one.seconds for one in steps)
        samples = sum(one.samples for one in steps)
        devices = max(seconds, 1e-9) * config.parallel.world_size
        model = model_flops(config, samples) / devices
        return Interval(
            iteration=last.iteration,
            consumed_samples=last.consumed_samples,
            steps=len(steps),
            seconds=seconds / len(steps),
            samples=last.samples,
            learning_rate=last.learning_rate,
            lm_loss=sum(good) / len(good) if good else None,
            grad_norm=last.grad_norm,
            loss_scale=last.loss_scale,
            skipped=sum(one.skipped for one in steps),
            nan=sum(one.nan for one in steps),
            samples_per_s=samples / max(seconds, 1e-9),
            tokens_per_s=sum(one.tokens for one in steps) / max(seconds, 1e-9),
            tflops=dialect_flops(config, samples) / devices / 1e12,
            model_tflops=model / 1e12,
            mfu=model / self._peak if self._peak else None,
            num_zeros=last.num_zeros,
            peak_memory_bytes=last.peak_memory_bytes,
            params_norm=last.params_norm,
            ranks={part: asdict(one) for part, one in last.spreads.items()} or None,
        )

    def _keep(self, file: str, values: dict[str, Any]) -> None:
        # JSON has no NaN or Inf.
        finite = {name: None if _is_not_finite(value) else value for name, value in values.items()}
        row = json.dumps(finite, allow_nan=False) + "\n"
        if file in self._files:
            self._try(f"{file}.jsonl", lambda: self._files[file].write(row))

    def _write_scalars(self, metrics: StepMetrics) -> None:
        for name in ("lm_loss", "learning_rate", "grad_norm", "loss_scale"):
            self._scalar(f"train/{name}", getattr(metrics, name), metrics.iteration)

    def _scalar(self, name: str, value: float, iteration: int) -> None:
        for sink, write in self._scalars.items():
            if sink not in self._failed:
                self._try(sink, functools.partial(write, name, value, iteration))

    def _open_files(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Open the files for appending, keeping the rows of an earlier run that ``is_kept`` accepts."""
        self._is_open = True
        for name in ("metrics", "evaluations", "samples"):
            self._try(f"{name}.jsonl", functools.partial(self._open_file, name, is_kept))

    def _open_file(self, name: str, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        path = self._folder / f"{name}.jsonl"
        before = regular_files.read_text(path, errors="replace") if path.exists() else ""
        kept = "".join(f"{row}\n" for row in before.splitlines() if _is_complete_and_kept(row, is_kept))
        if kept != before:
            aside = path.with_suffix(".part")
            aside.write_text(kept, encoding="utf-8")
            aside.replace(path)
        self._files[name] = path.open("a", encoding="utf-8", buffering=1)

    def _open_tensorboard(self, folder: Path) -> None:
        asked = self._config.logging.tensorboard
        if find_spec("tensorboard") is None:
            if asked:
                self.say(
                    f"tensorboard: nothing is written to {asked}, because tensorboard is not installed — install it"
                )
            return
        writer = import_module("torch.utils.tensorboard").SummaryWriter(log_dir=str(asked or folder / "tensorboard"))
        self._scalars["tensorboard"], self._closing["tensorboard"] = writer.add_scalar, writer.close

    def _open_wandb(self) -> None:
        logging = self._config.logging
        if not logging.wandb_project:
            return
        if find_spec("wandb") is None:
            self.say(
                f"wandb: nothing is logged to {logging.wandb_project}, because wandb is not installed — install it"
            )
            return
        run = import_module("wandb").init(
            project=logging.wandb_project,
            name=logging.wandb_name,
            group=logging.wandb_group,
            entity=logging.wandb_entity,
            config=to_dict(self._config),
        )
        self._scalars["wandb"] = lambda name, value, iteration: run.log({name: value}, step=iteration)
        self._closing["wandb"] = run.finish


def _is_complete_and_kept(row: str, is_kept: Callable[[dict[str, Any]], bool]) -> bool:
    """Return whether a row is complete (a crash or a full disk may have truncated it) and is to be kept."""
    try:
        return is_kept(json.loads(row))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
