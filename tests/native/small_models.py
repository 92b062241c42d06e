"""Small configurations that a test can train in seconds, and batches that do not depend on the mesh."""

from __future__ import annotations

from dataclasses import replace

import torch

from ascend_adapt.native.config import (
    Batch,
    Checkpoint,
    Data,
    Init,
    Logging,
    Model,
    Optimizer,
    Parallel,
    Precision,
    Schedule,
    TrainConfig,
)

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
MODELS = {"gpt2": GPT2, "neox": NEOX, "gated": GATED, "gpt_j_tied": replace(NEOX, shared_norm=True)}


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
        optimizer=Optimizer(kind="adamw", weight_decay=0.1, clip_grad=1.0),
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
    # Something to learn: each id tells the next.
    text[:, 1::2] = (text[:, :-1:2] * 7 + 3) % settings.model.vocab_size
    counted = torch.rand(SAMPLES, LENGTH, generator=numbers) > 0.1
    micro, ranks = settings.batch.micro, settings.parallel.data
    mine = torch.arange(SAMPLES).view(-1, ranks, micro)[:, data_rank].flatten()
    return {
        "tokens": text[mine, :-1],
        "labels": text[mine, 1:],
        "loss_mask": counted[mine].float(),
    }
