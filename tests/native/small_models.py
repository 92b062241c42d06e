"""Small models that a test can train in seconds, on batches that do not depend on the mesh."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import torch

from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Data,
    Init,
    Logging,
    LossScale,
    Model,
    OptimizerConfig,
    Parallel,
    Precision,
    Schedule,
    TrainConfig,
)
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.checkpoint.save import Saver
from ascend_adapt.native.checkpoint.state import TrainState
from ascend_adapt.native.parallel import accumulation, zero
from ascend_adapt.native.step import data_parallel
from ascend_adapt.native.step import trainer as trainers
from ascend_adapt.native.step.trainer import Trainer

SAMPLES, LENGTH, VOCABULARY = 8, 16, 96

GPT2 = Model(
    vocab_size=91,
    padded_vocab_size=VOCABULARY,
    hidden_size=32,
    num_layers=4,
    num_heads=4,
    num_query_groups=4,
    head_dim=8,
    ffn_hidden_size=64,
    max_positions=LENGTH,
    activation="gelu_tanh",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    embedding_init=Init(std=0.1),
    init=Init(std=0.1),
    output_init=Init(std=0.1 / 8**0.5),
    head_init=Init(std=0.1),
)
NEOX = replace(
    GPT2, positions="rotary", rotary_fraction=0.25, parallel_residual=True, activation="gelu", tied_embeddings=False
)
GATED = replace(
    NEOX,
    parallel_residual=False,
    rotary_fraction=1.0,
    norm="rmsnorm",
    activation="swiglu",
    num_query_groups=4,
    num_heads=8,
    head_dim=4,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
)
MODELS = {
    "gpt2": GPT2,
    "neox": NEOX,
    "gated": GATED,
    "gpt_j_tied": replace(NEOX, shared_norm=True),
    "neox_4h": replace(NEOX, ffn_hidden_size=128),
    "odd": replace(GPT2, max_positions=LENGTH + 1),
    "glm": replace(GPT2, positions="block", max_positions=LENGTH + 1),
}


def config(model=GPT2, *, micro=1, **parallel):
    """Return a run of SAMPLES samples a step on a mesh."""
    shape = Parallel(**parallel)
    if not shape.stages:
        stages = shape.pipeline * shape.virtual_stages
        shape = replace(shape, stages=(model.num_layers // stages,) * stages)
    return TrainConfig(
        dialect="megatron",
        model=model,
        parallel=shape,
        batch=Batch(micro=micro, accumulation=SAMPLES // micro // shape.data, total=SAMPLES),
        optimizer=OptimizerConfig(kind="adamw", weight_decay=0.1, clip_grad=1.0),
        schedule=Schedule(dialect="megatron", lr=3e-3, style="constant", decay=20.0),
        precision=Precision(),
        data=Data(train=("none",), seq_length=LENGTH),
        logging=Logging(),
        checkpoint=Checkpoint(),
        iterations=20,
    )


def batch(step, settings, data_rank=0):
    """Return a data-parallel rank's part of a step's global batch: micro batches in the order that samplers have."""
    numbers = torch.Generator().manual_seed(step)
    text = torch.randint(0, settings.model.vocab_size, (SAMPLES, LENGTH + 1), generator=numbers)
    # Something to learn: each id determines the next.
    text[:, 1::2] = (text[:, :-1:2] * 7 + 3) % settings.model.vocab_size
    counted = torch.rand(SAMPLES, LENGTH, generator=numbers) > 0.1
    micro, ranks = settings.batch.micro, settings.parallel.data
    mine = torch.arange(SAMPLES).view(-1, ranks, micro)[:, data_rank].flatten()
    chosen = {
        "tokens": text[mine, :-1],
        "labels": text[mine, 1:],
        "loss_mask": counted[mine].float(),
    }
    if settings.model.positions == "block":
        prefix = torch.randint(2, LENGTH - 2, (SAMPLES,), generator=numbers)[mine]
        inside = (torch.arange(LENGTH) - prefix[:, None] + 1).clamp(min=0)
        positions = torch.arange(LENGTH).minimum(prefix[:, None] - 1)
        chosen |= {"prefix": prefix, "position_ids": positions, "block_position_ids": inside}
    return chosen


@dataclass(frozen=True)
class Case:
    """One training: ``sizes`` are those of Parallel, and micro; a run that loads a checkpoint resumes it."""

    name: str
    model: str
    sizes: dict = field(default_factory=dict)
    steps: int = 20
    dtype: str = "fp32"
    reduce: str = "fp32"
    initial_scale: float = 2.0**12
    loss_mean: str = "micro_batches"
    load: str | None = None
    save: str | None = None
    by_fsdp: bool = False
    fused: bool = False
    """Whether linear layers accumulate their weights' gradients, as on a GPU (``fused_products``)."""

    @property
    def settings(self):
        """The configuration."""
        made = config(MODELS[self.model], **self.sizes)
        checkpoint = Checkpoint(load=self.load, save=self.save)
        precision = Precision(
            self.dtype, reduce=self.reduce, loss_scale=LossScale(initial=self.initial_scale, hysteresis=1)
        )
        return replace(made, precision=precision, checkpoint=checkpoint, logging=Logging(loss_mean=self.loss_mean))


@dataclass(frozen=True)
class Results:
    """Per-step results, and the losses of an evaluation before and after the steps."""

    losses: list[float]
    norms: list[float]
    evaluated: list[float]
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)


def place_by_fsdp(decoder, mesh, precision):
    """Place parameters by FSDP, the reference for ComputeWeights."""
    data_parallel.shard(decoder, mesh, precision)
    decoder.to_empty(device=mesh.device)


@contextmanager
def fused_products():
    """Linear layers accumulate their weights' gradients; yields for each product whether it overwrites.

    A product is rounded as it is without this, so no bit may differ.
    """
    calls = []

    def rounded(total, left, right, *, overwrite):
        calls.append(overwrite)
        of_pair = (left @ right).view_as(total)
        _ = total.copy_(of_pair) if overwrite else total.add_(of_pair)

    with (
        patch.object(accumulation, "are_fused", lambda device: True),
        patch.object(zero, "are_fused", lambda device: True),
        patch.object(zero, "add_product", rounded),
    ):
        yield calls


def train(case, mesh):
    """Train on this rank."""
    with fused_products() if case.fused else nullcontext([True]) as calls:
        results = _train(case, mesh)
    assert calls, f"{case.name}: no product accumulated a gradient"
    return results


def _train(case, mesh):
    settings, results = case.settings, Results([], [], [])
    with patch.object(trainers, "place", place_by_fsdp if case.by_fsdp else trainers.place):
        trainer = Trainer(settings, mesh)
    progress, _ = load(trainer)

    def mine(step):
        return {name: tensor.to(mesh.device) for name, tensor in batch(step, settings, mesh.data_rank).items()}

    def evaluate():
        results.evaluated.append(trainer.evaluate(mine(1000), settings.batch.accumulation))

    evaluate()
    for number in range(progress.iteration, progress.iteration + case.steps):
        step = trainer.step(mine(number), settings.batch.accumulation, lr=3e-3, weight_decay=0.1)
        results.losses.append(step.loss)
        results.norms.append(step.grad_norm)
        results.scales.append(step.loss_scale)
        results.skipped.append(step.skipped)
    evaluate()
    if case.save:
        done = progress.iteration + case.steps
        saver = Saver(trainer, Path(case.save))
        saver.save(TrainState(done, done * SAMPLES, done))
        saver.wait()
    return results
