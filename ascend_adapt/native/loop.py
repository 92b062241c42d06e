"""Training loop: steps, evaluations and checkpoints of a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from ascend_adapt.config.batches import batch_at, samples_from
from ascend_adapt.config.schedules import learning_rate, weight_decay
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import DataError, TrainingError
from ascend_adapt.native import device as devices
from ascend_adapt.native.checkpoint import state
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.save_lock import SaveLock
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.generation.training_samples import TextSample, TextSampler
from ascend_adapt.native.metrics.anomalies import AnomalyDetector
from ascend_adapt.native.metrics.profiler import Profiler
from ascend_adapt.native.metrics.step_metrics import StepMetrics
from ascend_adapt.native.metrics.stragglers import StepTimes
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.samples.glm_loader import GlmSamples
from ascend_adapt.native.samples.glm_text import wait_for_tokens
from ascend_adapt.native.samples.loader import Samples, is_evaluated
from ascend_adapt.native.samples.token_files import empty_by_split, identities
from ascend_adapt.native.signals import SignalHandler
from ascend_adapt.native.step.pipeline import Batch
from ascend_adapt.native.step.trainer import Step, Trainer
from ascend_adapt.whole_numbers import of_variable, whole_number


class Batches(Protocol):
    """The batches of one split (train, valid or test) for this data-parallel rank."""

    left: float
    """Number of samples left at the start, over all ranks."""

    def next(self, micro_batches: int) -> Batch:
        """Return the next micro batches, on the device."""

    def close(self) -> None:
        """End the workers."""


class Log(Protocol):
    """Receives the log events of a run; every rank logs the same events."""

    def say(self, text: str) -> None:
        """Log a line."""

    def step(self, metrics: StepMetrics) -> None:
        """Log an iteration."""

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Log an evaluation."""

    def text_samples(self, iteration: int, samples: Sequence[TextSample]) -> None:
        """Log text samples."""


def train(config: TrainConfig, run_dir: str | Path, log: Log, kind: type[TrainingRun] | None = None) -> None:
    """Train on this rank; RANK and WORLD_SIZE identify it, and the world size must match the configuration.

    ``kind`` is the kind of run, TrainingRun or one derived from it.

    Raises:
        ConfigError: the world size does not match; raised before any process group is created.
        TrainingError: a checkpoint cannot be loaded, or the run cannot continue.
        DataError: token files cannot be read or are too short.
    """
    meshes.check_world(config.parallel, of_variable(os.environ, "WORLD_SIZE", 1))
    device = devices.of_this_rank()
    devices.set_deterministic(os.environ)
    # Not with several ranks, whose collectives occupy multiprocessors, and not in fp32, which was not measured.
    if config.parallel.world_size == 1 and config.precision.dtype != "fp32":
        devices.schedule_matmuls_statically(device, os.environ)
    started_here = not dist.is_initialized()
    if started_here:
        _start(device)
    try:
        mesh = meshes.build(config.parallel, device)
        with SaveLock(config.checkpoint.save, mesh) as warnings:
            for line in warnings:
                log.say(line)
            (kind or TrainingRun)(config, mesh, log, Path(run_dir)).to_the_end()
    finally:
        if started_here:
            dist.destroy_process_group()


def _start(device: torch.device) -> None:
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(devices.backend(device))
    else:
        dist.init_process_group(devices.backend(device), store=dist.HashStore(), rank=0, world_size=1)


@dataclass(frozen=True)
class _Fetched:
    """The batch of one step on this rank."""

    samples: int
    """Number of samples over all ranks."""
    micro_batches: int
    batch: Batch
    seconds: float
    """Time that this rank took to load the batch, in seconds."""


class TrainingRun:
    """State of a run on this rank: its progress, data, trainer and saver."""

    def __init__(self, config: TrainConfig, mesh: meshes.Mesh, log: Log, run_dir: Path) -> None:
        self.config, self.mesh, self.log = config, mesh, log
        if config.data.blanks is not None:
            wait_for_tokens(config, writes=os.environ.get("LOCAL_RANK", "0") == "0")
        self.group = HostGroup(mesh)
        self.token_files = self._agreed_token_files()
        self.trainer = Trainer(config, mesh)
        self.progress, messages = load(self.trainer, self.token_files)
        self.config = config = self.trainer.config  # the schedule may be the checkpoint's
        self._say(messages)
        self.resumed_at = self.progress.iteration
        self.interruption = SignalHandler(config.exit_signals)
        self.watch = AnomalyDetector(mesh, scale_adapts=self.trainer.scaler.moves)
        self.times = StepTimes(mesh, [] if config.compile or self.trainer.graphs is not None else self.trainer.decoders)
        self.profiler = Profiler(config.profile, mesh, run_dir)
        self.votes = self.votes_to_save = 0
        self._fetched: _Fetched | None = None
        self.saver: Saver | None = None
        if config.checkpoint.save is not None:
            self.saver = Saver(self.trainer, Path(config.checkpoint.save), self.token_files)
        self.opened: list[Batches] = []
        if not config.eval_only:
            self.train = self._samples("train", self.progress.consumed_samples)
            self._check_enough()
        if config.eval_interval and config.eval_iterations:
            for part in empty_by_split(config.data):
                self.log.say(
                    f"{part}: no sequence with split {config.data.split}, so it is not evaluated, as in upstream"
                )
        self.valid: Batches | None = None
        if is_evaluated(config, "valid"):
            evaluations = self.progress.iteration // config.eval_interval
            self.valid = self._samples("valid", evaluations * config.eval_iterations * config.batch.total)
        self.sampler: TextSampler | None = None
        if config.text_samples is not None:
            self.sampler = TextSampler(config, config.text_samples, self.trainer.decoders[0], mesh)
        self.began = time.monotonic()

    def to_the_end(self) -> None:
        """Train until the last iteration, a configured exit condition or a signal; then save.

        Raises:
            TrainingError: the run cannot continue, or a checkpoint could not be written.
        """
        try:
            with self.interruption:
                if self.config.eval_only:
                    self._evaluate_all()
                else:
                    self._train()
                self._say(self.profiler.finish())
                if self.saver is not None:
                    self.saver.wait()
        finally:
            self.profiler.close()
            for samples in self.opened:
                samples.close()
            if self.saver is not None:
                self.saver.close()
            self.trainer.close()

    def _agreed_token_files(self) -> dict[str, str]:
        """Return the identities of the token files, checked to be equal on every rank.

        Raises:
            DataError: hosts have different files under the same name.
        """
        first, *others = self.group.together(lambda: identities(self.config))
        for rank, theirs in enumerate(others, 1):
            for prefix, what in theirs.items():
                if what != first[prefix]:
                    raise DataError(
                        f"{prefix}: rank {rank} has {what}, expected rank 0's {first[prefix]} — give all hosts the "
                        "same token files"
                    )
        return first

    def open(self, part: str, consumed: int) -> Batches:
        """Return the batches of a part on this rank, starting after ``consumed`` samples."""
        kind = Samples if self.config.data.blanks is None else GlmSamples
        return kind(self.config, self.mesh, part, consumed)

    def _samples(self, part: str, consumed: int = 0) -> Batches:
        """Return the samples of a part; every rank must call this method.

        Rank 0 computes the sample order and caches it. One rank of every host that does not see this cache then
        computes it too; all other ranks read it from the cache.
        """
        turn = 0 if self.mesh.rank == 0 else 1 if os.environ.get("LOCAL_RANK", "0") == "0" else 2
        for now in range(3):
            if now == turn:
                self.opened.append(self.open(part, consumed))
            self.group.together(lambda: None)
        return self.opened[-1]

    def _check_enough(self) -> None:
        """Check that the samples suffice for the remaining steps; after resuming with smaller batches they may not.

        Raises:
            DataError: too few samples are left.
        """
        config, done = self.config, self.progress
        steps = max(config.iterations - done.iteration, 0)
        needed = samples_from(config.batch, config.parallel.data, done.consumed_samples, steps)
        if self.train.left < needed:
            raise DataError(
                f"train: {self.train.left} samples left after {done.consumed_samples}, expected {needed} for the "
                f"remaining {steps} steps — increase the total samples or iterations, or keep the batch size"
            )

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self.log.say(line)

    def _evaluate_all(self) -> None:
        """Evaluate on the validation and test data that training would use next, like Megatron's --skip-train."""
        if self.valid is not None:
            self.log.evaluation(self.progress.iteration, "valid", self.evaluate(self.valid))
        self._generate_samples()
        self.test()

    def _train(self) -> None:
        config, saved = self.config, -1
        if self.progress.iteration == 0 and state.due(config, 0):
            self.save()
        while self.progress.iteration < config.iterations:
            self.step()
            iteration = self.progress.iteration
            reason = self._reason_to_stop(iteration)
            if not self.votes:
                self.evaluate_if_due(iteration)
            if self.votes_to_save:
                self._answer_save_request(iteration)
            if state.due(config, iteration) or (self.votes_to_save and self.saver is not None):
                self.save()
                saved = iteration
            if reason is not None:
                if self.saver is not None and saved != iteration:
                    self.save()
                self.log.say(f"stopping after iteration {iteration}, {reason}")
                return
        self.test()

    def evaluate_if_due(self, iteration: int) -> None:
        """Evaluate on the valid part and generate text samples, if the evaluation interval ends with this iteration."""
        if not self.config.eval_interval or iteration % self.config.eval_interval:
            return
        if self.valid is not None:
            self.log.evaluation(iteration, "valid", self.evaluate(self.valid))
        self._generate_samples()

    def _generate_samples(self) -> None:
        if self.sampler is not None:
            self.log.text_samples(self.progress.iteration, self.sampler.generate())

    def test(self) -> None:
        """Evaluate on the test part at the end of training."""
        if is_evaluated(self.config, "test"):
            self.log.evaluation(self.progress.iteration, "test", self.evaluate(self._samples("test")))

    def step(self) -> None:
        """Train on the next global batch.

        Raises:
            TrainingError: NaN or Inf in the loss or the gradients, under ``check_for_nan_in_loss_and_grad``.
        """
        config, before, began = self.config, self.progress, time.perf_counter()
        self.profiler.before(before.iteration + 1)
        now = self._fetched or self._fetch(before.consumed_samples)
        self._fetched = None
        total, micro_batches = now.samples, now.micro_batches
        self.times.step(now.seconds)

        peak_memory: int | None = None

        def while_it_computes() -> Batch | None:
            nonlocal peak_memory
            peak_memory = devices.peak_memory(self.mesh.device)
            if isinstance(self.train, Samples) and before.iteration + 1 < config.iterations:
                self._fetched = self._fetch(before.consumed_samples + total)
            return None if self._fetched is None else self._fetched.batch

        rate = learning_rate(config.schedule, before.scheduled)
        decay = weight_decay(config.schedule, config.optimizer.weight_decay, before.scheduled)
        done = self.trainer.step(
            now.batch,
            micro_batches,
            rate,
            decay,
            meanwhile=while_it_computes,
            votes_to_stop=self.interruption.asked_to_stop or self._late,
            votes_to_save=self.interruption.asked_to_save,
        )
        self.votes, self.votes_to_save = done.votes, done.votes_to_save
        self._say(self.watch.report(before.iteration + 1, done))
        self._say(self.profiler.after(before.iteration + 1))
        self._say(self.trainer.messages())
        if self.saver is not None:
            self.saver.check()
        advance = 0 if done.skipped else total if config.schedule.unit == "samples" else 1
        self.progress = after = TrainState(
            before.iteration + 1, before.consumed_samples + total, before.scheduled + advance
        )
        spreads = self.times.report() if after.iteration % config.logging.interval == 0 else {}
        self._say(self.times.warnings(after.iteration, spreads))
        self.log.step(
            StepMetrics(
                iteration=after.iteration,
                consumed_samples=after.consumed_samples,
                samples=total,
                tokens=total * config.data.seq_length,
                lm_loss=done.loss,
                learning_rate=learning_rate(config.schedule, after.scheduled),
                grad_norm=done.grad_norm,
                loss_scale=done.loss_scale,
                skipped=done.skipped,
                nan=not math.isfinite(done.loss),
                seconds=time.perf_counter() - began,
                params_norm=done.params_norm,
                num_zeros=done.num_zeros,
                peak_memory_bytes=peak_memory,
                spreads=spreads,
            )
        )
        if config.check_for_nan_in_loss_and_grad and self.watch.is_spoiled:
            raise TrainingError(self._why_spoiled(done))

    def _why_spoiled(self, done: Step) -> str:
        cause = "" if self.watch.cause is None else f", {self.watch.cause}"
        return (
            f"iteration {self.progress.iteration}: loss {done.loss:g}, gradient norm {done.grad_norm:g}{cause}; "
            f"expected finite values — {self._valid_checkpoint()}; lower the learning rate or train in fp32, or "
            "continue anyway with --no-check-for-nan-in-loss-and-grad"
        )

    def _fetch(self, consumed: int) -> _Fetched:
        """Load the samples of the step that starts after ``consumed`` samples."""
        began = time.perf_counter()
        total, micro_batches = batch_at(self.config.batch, self.config.parallel.data, consumed)
        return _Fetched(total, micro_batches, self.train.next(micro_batches), time.perf_counter() - began)

    def evaluate(self, samples: Batches) -> float:
        """Return the mean loss of the next ``eval_iterations`` global batches."""
        config = self.config
        sums = [
            self.trainer.losses(samples.next(config.batch.accumulation), config.batch.accumulation)
            for _ in range(config.eval_iterations)
        ]
        return sum(losses for losses, _ in sums) / sum(weights for _, weights in sums)

    def save(self) -> None:
        """Start saving a checkpoint.

        Raises:
            TrainingError: a weight is NaN or Inf.
        """
        assert self.saver is not None
        if not self.trainer.is_finite():
            raise TrainingError(
                f"iteration {self.progress.iteration}: weights are NaN or Inf and were not saved, expected finite "
                f"weights — {self._valid_checkpoint()}; lower the learning rate or train in fp32"
            )
        self.log.say(f"saving {self.saver.save(self.progress)}")

    def _answer_save_request(self, iteration: int) -> None:
        self.interruption.forget_save_requests()
        if self.saver is None:
            self.log.say(f"save requested by a signal after iteration {iteration}: nothing is saved without --save")
        else:
            self.log.say(f"save requested by a signal after iteration {iteration}: the run continues")

    def _valid_checkpoint(self) -> str:
        """Return the checkpoint to resume from, as a next step; waits for a checkpoint that is being written."""
        if self.saver is not None:
            self.saver.wait()
            latest = whole_number(self.group.on_first(self.saver.folder.latest))
            if latest is not None:
                return f"resume from {self.saver.folder.of(latest)}"
        return f"resume from {self.config.checkpoint.load}" if self.resumed_at else "no checkpoint was saved"

    def _reason_to_stop(self, iteration: int) -> str | None:
        """Return why the run stops after this iteration, the same on every rank, or None."""
        if self.config.exit_interval and iteration % self.config.exit_interval == 0:
            return "as requested"
        return "as requested by a signal or the time limit" if self.votes else None

    @property
    def _late(self) -> bool:
        limit = self.config.exit_duration_minutes
        return limit is not None and time.monotonic() - self.began > limit * 60
