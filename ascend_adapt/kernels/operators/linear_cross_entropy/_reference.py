"""Reference of linear_cross_entropy, in plain torch: cross_entropy's reference on chunks of tokens."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.cross_entropy._reference import gradient, losses_and_normaliser
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall
from ascend_adapt.kernels.operators.linear_cross_entropy._chunks import Arithmetic, by_chunks, scaled


def _gradient_in_place(logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, call: Any) -> torch.Tensor:
    return gradient(logits, normaliser, grad, call, into=logits)


_ARITHMETIC = Arithmetic(losses_and_normaliser, _gradient_in_place, scaled)


def supports(call: LinearCrossEntropyCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: LinearCrossEntropyCall) -> torch.Tensor:
    """Return the loss: a scalar, or with ``none`` one per token, [T]."""
    return by_chunks(call, _ARITHMETIC)
