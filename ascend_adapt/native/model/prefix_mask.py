"""Attention mask of a prefix that every token attends to, causal after it (GLM's separator)."""

from __future__ import annotations

import torch


def prefix_mask(prefix: torch.Tensor, length: int) -> torch.Tensor:
    """Return masked_out, bool [B, S, S], for prefix lengths int64 [B]; True = masked out.

    Source of the rule: THUDM/GLM@4f61ed72 mpu/transformer.py (build_mask_matrix).
    """
    places = torch.arange(length, device=prefix.device)
    later = places[None, :] > places[:, None]
    return later[None] & (places[None, None, :] >= prefix[:, None, None])
