"""Logits of the native model with a checkpoint's weights, with one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from ascend_adapt.checkpoint.canonical import HEAD, WORDS
from ascend_adapt.config.model_config import Model
from ascend_adapt.native.model.decoder import Embedding
from ascend_adapt.native.model.layers import AttentionContext, Norm, TransformerBlock, rotary_tables
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel


def native_logits(model: Model, read: Callable[[str], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return fp32 logits [B, S, padded vocabulary] of int64 ``tokens`` [B, S]; ``read`` is as in Source."""
    alone = TensorParallel(None, 1, 0, False)

    def filled(module: nn.Module, prefix: str) -> nn.Module:
        weights = {name: read(f"{prefix}.{name}").float() for name, _ in module.named_parameters()}
        module.load_state_dict(weights, assign=True)
        return module.eval()

    def made(kind: Callable[..., nn.Module], prefix: str, *more: object, **words: object) -> nn.Module:
        with torch.device("meta"):
            module = kind(model, *more, **words)
        return filled(module, prefix)

    with torch.no_grad():
        x = made(Embedding, "embedding", alone)(tokens, None)
        rotary = rotary_tables(model, tokens.shape[1], x) if model.positions == "rotary" else None
        for number in range(model.num_layers):
            x = made(TransformerBlock, f"layers.{number}", alone, recompute_attention=False)(
                x, AttentionContext(None, rotary)
            )
        x = made(Norm, "final_norm", alone)(x)
        logits: torch.Tensor = functional.linear(x, read(WORDS if model.tied_embeddings else HEAD).float())
    return logits
