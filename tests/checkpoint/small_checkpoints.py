"""Small models of every kind that checkpoints hold, filled with numbers that are all different."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.config.model_config import Model

GPT2 = Model(
    vocab_size=90,
    padded_vocab_size=96,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_query_groups=4,
    head_dim=8,
    ffn_hidden_size=128,
    max_positions=16,
    activation="gelu_tanh",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
NEOX = replace(
    GPT2, positions="rotary", rotary_fraction=0.5, parallel_residual=True, activation="gelu", tied_embeddings=False
)
LLAMA = replace(
    GPT2,
    num_heads=8,
    head_dim=4,
    positions="rotary",
    norm="rmsnorm",
    norm_eps=1e-6,
    activation="swiglu",
    ffn_hidden_size=48,
    tied_embeddings=False,
    attention_bias=False,
    output_bias=False,
    mlp_bias=False,
)
MODELS = {
    "gpt2": GPT2,
    "gpt2 untied": replace(GPT2, tied_embeddings=False),
    "neox": NEOX,
    "neox one after the other": replace(NEOX, parallel_residual=False),
    "neox tied": replace(NEOX, tied_embeddings=True),
    "neox one norm": replace(NEOX, shared_norm=True),
    "llama": LLAMA,
    "llama shared key heads": replace(LLAMA, num_query_groups=4),
    "qwen2": replace(LLAMA, num_query_groups=4, attention_bias=True, tied_embeddings=True),
}


def state_of(model: Model, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return a canonical state of random numbers that a model computes finite logits with."""
    dice = torch.Generator().manual_seed(7)
    state = {}
    for one in parameters(model):
        around = 1.0 if one.name.endswith("norm.weight") else 0.0
        state[one.name] = (around + 0.2 * torch.randn(one.shape, generator=dice)).to(dtype)
    return state


def output_of(model: Model, state: dict[str, torch.Tensor], **sizes: object) -> Output:
    """Return what writers take."""
    dtype = next(iter(state.values())).dtype
    return Output(model, state.__getitem__, lambda amount: None, dtype, **sizes)  # type: ignore[arg-type]


def new_folder(path: Path) -> Path:
    """Make a folder and return it."""
    path.mkdir(parents=True)
    return path
