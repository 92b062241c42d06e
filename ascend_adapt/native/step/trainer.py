"""Trainer: the model, optimizer and loss scale of one rank, and its training step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ascend_adapt import kernels
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.native import device as devices
from ascend_adapt.native.model.decoder import Decoder, stage_layers
from ascend_adapt.native.model.initialisation import generator, initialise
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Placed, placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel
from ascend_adapt.native.step import compile_trial, gradients, step_graph
from ascend_adapt.native.step.compile_trial import CompileTrial
from ascend_adapt.native.step.data_parallel import abandon_passes, place
from ascend_adapt.native.step.loss_scale import Scaler
from ascend_adapt.native.step.optimizer import Optimizer
from ascend_adapt.native.step.pipeline import Batch, PipelineSchedule, passes, stages_of
from ascend_adapt.native.step.step_graph import StepGraphs, Update


@dataclass(frozen=True)
class Step:
    """Outcome of one step, the same on every rank unless noted.

    A step is skipped, and does not change weights and optimizer states, if its gradient norm is NaN or Inf, or if the
    device reports an overflow under loss scaling.
    """

    loss: float
    grad_norm: float
    loss_scale: float
    skipped: bool
    params_norm: float | None = None
    num_zeros: float | None = None
    votes: int = 0
    """Number of ranks that asked to stop."""
    votes_to_save: int = 0
    """Number of ranks that asked for a checkpoint."""
    spoiled: tuple[str, ...] = ()
    """This rank's parameters with NaN or Inf in their gradients."""
    spoiled_weights: tuple[str, ...] = ()
    """This rank's parameters with NaN or Inf in their weights."""


class Trainer:
    """One rank of a run: its stages, pipeline schedule, optimizer and loss scale."""

    decoders: list[Decoder]
    parameters: list[Placed]
    passes: PipelineSchedule

    def __init__(self, config: TrainConfig, mesh: Mesh) -> None:
        self.config, self.mesh = config, mesh
        self.decoders = build(config, mesh)
        self.parameters = placed(self.decoders)
        self.passes = passes(config, mesh, self.decoders)
        self.optimizer = Optimizer(self.parameters, config.optimizer)
        self.scaler = Scaler(config.precision)
        self._has_run: set[tuple[str, torch.Size]] = set()
        self.graphs: StepGraphs | None = None
        if not step_graph.why_not(config, mesh):
            self.graphs = StepGraphs(mesh, self.parameters, self._passes_without_scale, self._update, self._abandon)
        self._trial: CompileTrial | None = None
        self._messages: list[str] = []
        if config.compile and (reason := compile_trial.why_not()):
            self._messages.append(f"compile: on, without timing uncompiled steps: {reason}")
        elif config.compile:
            self._trial = CompileTrial(mesh)
        self._fuse()
        seed_dropout(config.seed, mesh)

    def reconfigure(self, config: TrainConfig) -> None:
        """Use a configuration with another schedule, such as a checkpoint's, before the first step."""
        self.config = config
        if step_graph.why_not(config, self.mesh):
            self.graphs = None

    def step(
        self,
        batch: Batch,
        micro_batches: int,
        lr: float,
        weight_decay: float,
        *,
        votes_to_stop: bool = False,
        votes_to_save: bool = False,
        meanwhile: Callable[[], Batch | None] = lambda: None,
    ) -> Step:
        """Train on this data-parallel rank's part of one global batch.

        ``votes_to_stop``: whether this rank requests to stop after the step; ``votes_to_save``: whether it requests a
        checkpoint. The result has the number of ranks that requested each. ``meanwhile`` runs while the device computes
        the step. It returns the batch of the next step, or None.

        Raises:
            TrainingError: an overflow at the minimum loss scale, by DeepSpeed's rule.
        """
        self._set_mode(training=True)
        began = time.perf_counter()
        scale = self.scaler.scale
        params_norm = num_zeros = None
        skipped = False
        if self.graphs is not None:
            marks = (votes_to_stop, False, votes_to_save)
            norms, reduced = self.graphs.run(batch, micro_batches, lr, weight_decay, marks)
        else:
            loss, overflowed = self._passes(batch, micro_batches)
            norms, reduced = self._norms(loss, self._on_device((votes_to_stop, overflowed, votes_to_save)))
            logging = self.config.logging
            if logging.log_params_norm or logging.log_num_zeros:
                params_norm, num_zeros = gradients.norm_and_zeros(self.parameters, self.mesh)
            # Without a loss scale the host does not wait for the norm before it launches the optimizer, which skips
            # the step itself if the norm is NaN or Inf.
            if self.scaler.rule is not None:
                skipped = not math.isfinite(float(reduced[0])) or bool(reduced[3] > 0)
            if not skipped:
                self._optimize(reduced[0], lr, weight_decay)
            self.optimizer.clear_gradients()
        self.scaler.update(skipped)
        following = meanwhile()
        if self.graphs is not None and following is not None:
            self.graphs.prefetch(following)
        norm_sum, loss_sum, votes_sum, _, saves_sum = reduced.tolist()
        self._try_compiled(time.perf_counter() - began, micro_batches)
        skipped = skipped or not math.isfinite(norm_sum)
        is_bad = not (math.isfinite(norm_sum) and math.isfinite(loss_sum))
        return Step(
            loss_sum,
            norm_sum,
            scale,
            skipped,
            params_norm=params_norm if self.config.logging.log_params_norm else None,
            num_zeros=num_zeros if self.config.logging.log_num_zeros else None,
            votes=round(votes_sum),
            votes_to_save=round(saves_sum),
            spoiled=norms.not_finite() if is_bad else (),
            # NaN or Inf has not spread from the gradients: this step was skipped, or its gradients are finite.
            spoiled_weights=gradients.weight_norms(self.parameters).not_finite() if is_bad else (),
        )

    def _passes(self, batch: Batch, micro_batches: int) -> tuple[torch.Tensor, bool]:
        """Run the passes and complete the gradients; return the loss sums, and whether the overflow flag was set."""
        scale, is_scaled = self.scaler.scale, self.scaler.rule is not None
        if is_scaled:
            # Clears the overflow flag, which an evaluation may have set.
            devices.take_overflow(self.mesh.device)
        with self._eager_at_first("train", batch, micro_batches):
            loss = self.passes.train(batch, micro_batches, scale)
        gradients.complete(self.parameters, self.mesh, tied=self.config.model.tied_embeddings)
        if scale != 1.0:
            gradients.scale(self.parameters, 1.0 / scale)
        return loss, is_scaled and devices.take_overflow(self.mesh.device)

    def _norms(self, loss: torch.Tensor, marks: torch.Tensor) -> tuple[gradients.Norms, torch.Tensor]:
        """Return the norms of the gradients, and the values reduced over all ranks."""
        norms = gradients.norms(self.parameters)
        return norms, gradients.reduced(norms, loss, marks, self.mesh)

    def _optimize(self, norm: torch.Tensor, lr: float | torch.Tensor, weight_decay: float) -> None:
        factor = gradients.clip_factor(norm, self.config.optimizer.clip_grad)
        self.optimizer.step(lr, weight_decay, factor, gradients.found_inf(norm))

    def _passes_without_scale(self, batch: Batch, micro_batches: int) -> torch.Tensor:
        return self._passes(batch, micro_batches)[0]

    def _abandon(self) -> None:
        self.optimizer.clear_gradients()
        for decoder in self.decoders:
            abandon_passes(decoder)

    def _update(self, loss: torch.Tensor, lr: torch.Tensor, weight_decay: float, marks: torch.Tensor) -> Update:
        norms, reduced = self._norms(loss, marks)
        self._optimize(reduced[0], lr, weight_decay)
        self.optimizer.clear_gradients()
        return norms, reduced

    def _on_device(self, marks: tuple[bool, ...]) -> torch.Tensor:
        """Return the marks, fp32. Only marks that are set are copied from the host: a copy waits for the device."""
        result = torch.zeros(len(marks), device=self.mesh.device)
        for number, mark in enumerate(marks):
            if mark:
                result[number] = 1.0
        return result

    def is_finite(self) -> bool:
        """Return whether the weights of all ranks are finite; every rank must call it."""
        bad = bool(gradients.weight_norms(self.parameters).not_finite())
        return float(self.mesh.sum_over_all(torch.full((), float(bad), device=self.mesh.device))) == 0

    def evaluate(self, batch: Batch, micro_batches: int) -> float:
        """Return the mean loss over all data-parallel ranks of one global batch."""
        losses, weights = self.losses(batch, micro_batches)
        return losses / weights

    def losses(self, batch: Batch, micro_batches: int) -> tuple[float, float]:
        """Return the two sums of PipelineSchedule over all data-parallel ranks of one global batch."""
        self._set_mode(training=False)
        with self._eager_at_first("evaluate", batch, micro_batches):
            loss = self.passes.evaluate(batch, micro_batches)
        losses, weights = self.mesh.sum_over_all(gradients.counted_once(loss, self.mesh)).tolist()
        return losses, weights

    def close(self) -> None:
        """Free the CUDA graphs; call it before the process groups are destroyed."""
        if self.graphs is not None:
            self.graphs.forget()

    def _set_mode(self, *, training: bool) -> None:
        for decoder in self.decoders:
            if decoder.training != training:  # train() takes a millisecond
                decoder.train(training)

    def messages(self) -> list[str]:
        """Return the messages to log, and clear them."""
        messages, self._messages = self._messages, []
        for part in (self._trial, self.graphs):
            messages += [] if part is None else part.messages()
        return messages

    @property
    def _compiled(self) -> bool:
        return self.config.compile if self._trial is None else self._trial.compiled

    def _fuse(self) -> None:
        """Use the fused kernels unless the blocks are compiled: torch.compile fuses plain operators itself."""
        for decoder in self.decoders:
            decoder.fuse(not self._compiled and kernels.fuses(self.mesh.device.type))

    def _try_compiled(self, seconds: float, micro_batches: int) -> None:
        """Count a step of the ``--compile`` trial, and switch modes when the trial requests it."""
        if self._trial is not None and self._trial.step(seconds, micro_batches):
            self._fuse()
            if self.graphs is not None:
                self.graphs.forget()

    def _eager_at_first(self, kind: str, batch: Batch, micro_batches: int) -> AbstractContextManager[Any]:
        """Run the first passes of a shape eagerly: kernels choose their backends then, which breaks a graph."""
        if not self.config.compile:
            return nullcontext()
        if self._compiled:
            parts = (
                [batch["tokens"][::micro_batches]] if isinstance(batch, Mapping) else [one["tokens"] for one in batch]
            )
            shapes = {(kind, part.shape) for part in parts}
            if shapes <= self._has_run:
                return nullcontext()
            self._has_run |= shapes
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance


def build(config: TrainConfig, mesh: Mesh) -> list[Decoder]:
    """Build this rank's stages in order, sharded and initialised. No device ever holds more than its shard.

    Initialisation keeps one unsharded parameter at a time in host memory.

    Raises:
        TrainingError: ``compile`` is set, but the device has no compiler.
    """
    # Finetuning batches have several shapes.
    tp, parallel = TensorParallel.of(mesh, 1 if config.cloze else config.batch.micro), config.parallel
    decoders = []
    for stage in stages_of(config, mesh):
        with torch.device("meta"):
            decoder = Decoder(
                config.model,
                tp,
                stage_layers(parallel, stage),
                first=stage == 0,
                last=stage == len(parallel.stages) - 1,
                recompute=parallel.recompute,
                recompute_layers=parallel.recompute_layers,
            )
        if config.compile:
            devices.check_compiler(mesh.device)
            for block in decoder.layers.values():
                block.compile()
        place(decoder, mesh, config.precision)
        decoders.append(decoder)
    initialise(decoders, mesh, config.seed)
    return decoders


def seed_dropout(seed: int, mesh: Mesh, iteration: int = 0) -> None:
    """Seed the default generators: equally on tensor-parallel ranks, differently on others and at each iteration."""
    place = (mesh.pipeline_rank, mesh.data_rank, *((iteration,) if iteration else ()))
    number = generator(seed, "dropout", *place).initial_seed()
    torch.default_generator.manual_seed(number)
    devices.seed(mesh.device, number)
