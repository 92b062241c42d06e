"""A model and its optimizer on this rank, and one step of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ascend_adapt.native import device as devices
from ascend_adapt.native.config.train_config import TrainConfig
from ascend_adapt.native.model.decoder import Decoder, stage_layers
from ascend_adapt.native.model.initialisation import generator, initialise
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Placed, placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel
from ascend_adapt.native.step import gradients
from ascend_adapt.native.step.data_parallel import place
from ascend_adapt.native.step.loss_scale import Scaler
from ascend_adapt.native.step.optimizer import Optimizer
from ascend_adapt.native.step.pipeline import Batch, PipelineSchedule, passes, stages_of


@dataclass(frozen=True)
class Step:
    """What one step gave, the same on every rank. A skipped step left the weights as they were."""

    loss: float
    grad_norm: float
    loss_scale: float
    skipped: bool
    params_norm: float | None = None
    num_zeros: float | None = None
    votes: int = 0
    """Ranks that asked for an end."""
    votes_to_save: int = 0
    """Ranks that asked for a checkpoint."""
    spoiled: tuple[str, ...] = ()
    """This rank's parameters whose gradients were not finite."""
    spoiled_weights: tuple[str, ...] = ()
    """Those whose numbers were not finite before the step."""


class Trainer:
    """This rank's part of a run: its stages, the passes through them, the optimizer and the loss scale."""

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
        self._has_run: set[str] = set()
        seed_dropout(config.seed, mesh)

    def step(
        self,
        batch: Batch,
        micro_batches: int,
        lr: float,
        weight_decay: float,
        *,
        votes_to_stop: bool = False,
        votes_to_save: bool = False,
    ) -> Step:
        """Train on this data-parallel rank's part of one global batch.

        ``votes_to_stop``: the run should end after this step, ``votes_to_save``: a checkpoint should be saved; every
        rank learns how many ranks want that.

        Raises:
            TrainingError: an overflow at the smallest loss scale, by DeepSpeed's rule.
        """
        self._set_mode(training=True)
        scale, is_scaled = self.scaler.scale, self.scaler.rule is not None
        if is_scaled:
            # What an evaluation has overflowed is no matter of this step.
            devices.take_overflow(self.mesh.device)
        with self._eager_at_first("train"):
            loss = self.passes.train(batch, micro_batches, scale)
        gradients.complete(self.parameters, self.mesh, tied=self.config.model.tied_embeddings)
        if scale != 1.0:
            gradients.scale(self.parameters, 1.0 / scale)
        overflowed = is_scaled and devices.take_overflow(self.mesh.device)
        norms = gradients.norms(self.parameters)
        # Once the optimizer has taken such gradients all weights are as bad, and the first is not to be found.
        weights = gradients.weight_norms(self.parameters)
        marks = (votes_to_stop, overflowed, votes_to_save)
        reduced = gradients.reduced(norms, loss, marks, self.mesh)
        norm = reduced[0]
        logging = self.config.logging
        params_norm = num_zeros = None
        if logging.log_params_norm or logging.log_num_zeros:
            params_norm, num_zeros = gradients.norm_and_zeros(self.parameters, self.mesh)
        gradients.clip(self.parameters, norm, self.config.optimizer.clip_grad)
        # Without a loss scale the host need not know the norm before it hands the device the optimizer's work.
        skipped = is_scaled and (not math.isfinite(float(norm)) or bool(reduced[3] > 0))
        if not skipped:
            self.optimizer.step(lr, weight_decay)
        self.optimizer.clear_gradients()
        self.scaler.update(skipped)
        norm_sum, loss_sum, votes_sum, _, saves_sum = reduced.tolist()
        is_bad = not (math.isfinite(norm_sum) and math.isfinite(loss_sum))
        return Step(
            loss_sum,
            norm_sum,
            scale,
            skipped,
            params_norm=params_norm if logging.log_params_norm else None,
            num_zeros=num_zeros if logging.log_num_zeros else None,
            votes=round(votes_sum),
            votes_to_save=round(saves_sum),
            spoiled=norms.not_finite() if is_bad else (),
            spoiled_weights=weights.not_finite() if is_bad else (),
        )

    def is_finite(self) -> bool:
        """Return whether all weights of all ranks are numbers; every rank must call it."""
        bad = bool(gradients.weight_norms(self.parameters).not_finite())
        return float(self.mesh.sum_over_all(torch.full((), float(bad), device=self.mesh.device))) == 0

    def evaluate(self, batch: Batch, micro_batches: int) -> float:
        """Return the mean loss of all data-parallel ranks on their parts of one global batch."""
        losses, weights = self.losses(batch, micro_batches)
        return losses / weights

    def losses(self, batch: Batch, micro_batches: int) -> tuple[float, float]:
        """Return the two sums of Passes over all data-parallel ranks, on their parts of one global batch."""
        self._set_mode(training=False)
        with self._eager_at_first("evaluate"):
            loss = self.passes.evaluate(batch, micro_batches)
        losses, weights = self.mesh.sum_over_all(gradients.counted_once(loss, self.mesh)).tolist()
        return losses, weights

    def _set_mode(self, *, training: bool) -> None:
        for decoder in self.decoders:
            if decoder.training != training:  # to say it again takes a millisecond
                decoder.train(training)

    def _eager_at_first(self, kind: str) -> AbstractContextManager[Any]:
        """Leave the first passes of a kind as they are: kernels choose their backends then, which cuts a graph."""
        if not self.config.compile or kind in self._has_run:
            return nullcontext()
        self._has_run.add(kind)
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance


def build(config: TrainConfig, mesh: Mesh) -> list[Decoder]:
    """Return this rank's stages in their order, sharded and filled: no rank ever holds more of the model than its part.

    While they are filled one whole parameter at a time is in host memory.

    Raises:
        TrainingError: blocks are to be compiled, and nothing here compiles for the device.
    """
    tp, parallel = TensorParallel.of(mesh), config.parallel
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
    """Start the default generators: alike on tensor-parallel ranks, apart on all others and at other iterations."""
    place = (mesh.pipeline_rank, mesh.data_rank, *((iteration,) if iteration else ()))
    number = generator(seed, "dropout", *place).initial_seed()
    torch.default_generator.manual_seed(number)
    devices.seed(mesh.device, number)


def parameter_count(parameters: Sequence[Placed], mesh: Mesh) -> int:
    """Return how many numbers the whole model has, each counted once; every rank must call it."""
    here = sum(one.local.numel() for one in parameters if gradients.counts(one, mesh))
    # In two halves: fp32 sums are exact to 2**24, and an NPU reduces no int64.
    halves = torch.tensor([here >> 20, here & 0xFFFFF], dtype=torch.float32, device=mesh.device)
    high, low = mesh.sum_over_all(halves).tolist()
    return (int(high) << 20) + int(low)
