"""Attention of one sequence and its gradients, as the operator defines them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LANES = 8
"""Size of the last dimension of softmax_max and softmax_sum: the value of a row is repeated LANES times."""
EMPTY_MAX = torch.finfo(torch.float32).min
"""Value of softmax_max for a row whose keys are all masked. The hardware's value is not documented."""


@dataclass
class Problem:
    """The inputs of one sequence, in the precision of the arithmetic."""

    query: torch.Tensor
    """[N, Sq, D], with query_rope, if given, appended along D."""
    key: torch.Tensor
    """[N, Skv, D], heads repeated for grouped queries."""
    value: torch.Tensor
    """[N, Skv, Dv]"""
    pse: torch.Tensor | None
    """[N, Sq, Skv], or a shape that broadcasts to it."""
    masked: torch.Tensor | None
    """bool, with a shape that broadcasts to [N, Sq, Skv]"""
    keep: torch.Tensor | None
    """bool [N, Sq, Skv]: the probabilities that dropout keeps."""
    sink: torch.Tensor | None
    """[N]"""
    scale: float
    pse_first: bool
    """Whether pse is added before scaling: scale * (QK^T + pse)."""
    keep_prob: float

    def scores(self) -> torch.Tensor:
        """Return the scores [N, Sq, Skv]: scaled, biased, minus infinity where masked."""
        scores = self.query @ self.key.transpose(-1, -2)
        if self.pse is not None and self.pse_first:
            scores = (scores + self.pse) * self.scale
        else:
            scores = scores * self.scale + (0 if self.pse is None else self.pse)
        return scores if self.masked is None else scores.masked_fill(self.masked, -math.inf)

    def dropped(self, shares: torch.Tensor) -> torch.Tensor:
        """Return probabilities, or their gradient, after dropout."""
        return shares if self.keep is None else shares * self.keep / self.keep_prob


@dataclass
class Gradients:
    """The gradients of one Problem, in the shapes of its tensors."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scores: torch.Tensor
    """The gradient of pse, before the sum over its broadcast dimensions."""
    sink: torch.Tensor | None


def forward(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the attention [N, Sq, Dv], and the maximum and sum of each softmax row [N, Sq, 1].

    The output is zero in rows whose keys are all masked.
    """
    scores = problem.scores()
    largest = scores.amax(-1, keepdim=True)
    if problem.sink is not None:
        largest = torch.maximum(largest, problem.sink[:, None, None].to(largest.dtype))
    largest = largest.clamp(min=EMPTY_MAX)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    if problem.sink is not None:
        total = total + (problem.sink[:, None, None] - largest).exp()
    shares = weights / total.masked_fill(total == 0, 1)
    return problem.dropped(shares) @ problem.value, largest, total


def backward(problem: Problem, dy: torch.Tensor, largest: torch.Tensor, total: torch.Tensor) -> Gradients:
    """Return the gradients of one sequence from the row maxima and sums of the forward pass."""
    divisor = total.masked_fill(total == 0, 1)
    shares = (problem.scores() - largest).exp() / divisor
    dvalue = problem.dropped(shares).transpose(-1, -2) @ dy
    dshares = problem.dropped(dy @ problem.value.transpose(-1, -2))
    inner = (dshares * shares).sum(-1, keepdim=True)
    dscores = shares * (dshares - inner)
    dsink = None
    if problem.sink is not None:
        of_sink = (problem.sink[:, None, None] - largest).exp() / divisor
        dsink = -(of_sink * inner).sum((1, 2))
    dquery = dscores @ problem.key * problem.scale
    dkey = dscores.transpose(-1, -2) @ problem.query * problem.scale
    return Gradients(dquery, dkey, dvalue, dscores * (problem.scale if problem.pse_first else 1), dsink)
