"""Scores of a cloze task's answers, and the losses that compare them.

Source: THUDM/GLM@4f61ed72 model/downstream.py (GLMForMultiTokenCloze, GLMForSingleTokenCloze) and finetune_glm.py
(finetune_forward_step).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from ascend_adapt import kernels
from ascend_adapt.config.train_config import Cloze
from ascend_adapt.native.model.decoder import IGNORE_INDEX, Rows, counted_labels
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel


def cross_entropy(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Cross entropy of scores [E, C] and answers int64 [E], averaged over examples."""
    return functional.cross_entropy(scores, answers)


def hinge(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Multi-class hinge loss with margin 1, summed over the wrong answers and averaged over examples."""
    margins = (1 + scores - scores.gather(1, answers[:, None])).clamp(min=0)
    return margins.sum(1).mean() - 1.0


def generative(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood: the negated score of the right answer, averaged over examples."""
    return -scores.gather(1, answers[:, None]).mean()


def mix(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Sum of the generative loss and the cross entropy."""
    return generative(scores, answers) + cross_entropy(scores, answers)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": cross_entropy,
    "hinge": hinge,
    "generative": generative,
    "mix": mix,
}


class ClozeObjective:
    """The loss of the last stage. In evaluation it also stores the answers with the highest scores until ``clear``."""

    def __init__(self, cloze: Cloze, choices: int, answer_ids: Sequence[int] | None) -> None:
        """``answer_ids`` are the tokens of the ``choices`` answers; None if each row of a batch has its own answer."""
        self._loss, self._penalty = LOSSES[cloze.loss], cloze.length_penalty
        self._choices, self._answer_ids = choices, answer_ids
        self.predictions: list[int] = []
        self.loss_sum = 0.0
        """Sum of the losses of these examples."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, tp: TensorParallel, rows: Rows, *, training: bool
    ) -> torch.Tensor:
        """Return the loss [1], fp32, from hidden states [B, S, H], which all tensor-parallel ranks have."""
        if rows.answers is None or rows.prefix is None:
            raise RuntimeError(
                "cloze: the batch has no answers or no prefix, expected both — make it with cloze_batches.collate"
            )
        answers = rows.answers
        if self._answer_ids is None:
            scores, answers = self._of_texts(x, weight, tp, rows), answers[:: self._choices]
        else:
            scores = self._of_words(x, weight, tp, rows.prefix)
        counted = answers >= 0
        if counted.all():
            loss = self._loss(scores, answers)
        elif counted.any():
            loss = self._loss(scores[counted], answers[counted])
        else:
            loss = 0.0 * scores.sum()
        if not training:
            self.predictions += scores.argmax(1)[counted].tolist()
            self.loss_sum += loss.item() * int(counted.sum())
        return torch.stack([loss])

    def clear(self) -> None:
        """Drop the stored results of evaluated examples."""
        self.predictions, self.loss_sum = [], 0.0

    def _of_texts(self, x: torch.Tensor, weight: torch.Tensor, tp: TensorParallel, rows: Rows) -> torch.Tensor:
        """Return the log probability of each answer's text, [E, C]."""
        labels = counted_labels(rows)
        losses = kernels.linear_cross_entropy(
            x, weight, labels, ignore_index=IGNORE_INDEX, reduction="none", group=tp.group
        )
        scores = -losses.sum(1)
        if self._penalty:
            scores = scores / (labels != IGNORE_INDEX).sum(1).clamp(min=1) ** self._penalty
        return scores.view(-1, self._choices)

    def _of_words(
        self, x: torch.Tensor, weight: torch.Tensor, tp: TensorParallel, prefix: torch.Tensor
    ) -> torch.Tensor:
        """Return the logit of each answer's token after [sop], [E, C]."""
        ids = torch.tensor(self._answer_ids, device=x.device) - tp.rank * weight.shape[0]
        elsewhere = (ids < 0) | (ids >= weight.shape[0])
        partial = functional.embedding(ids.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere[:, None], 0.0)
        first = x[torch.arange(len(x), device=x.device), prefix.to(x.device)]
        return functional.linear(first.float(), tp.leave(partial).float())
