"""Batches of a cloze task: each data-parallel rank's examples of an epoch, as a pure function of the batch number.

The order is that of torch's DistributedSampler, as in THUDM/GLM@4f61ed72 tasks/data_utils.py (build_data_loader): drawn
from the seed for each epoch, with the first examples repeated at the end if the number of examples is not divisible by
the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.native.finetuning.patterns import Pattern
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples import glm_loader
from ascend_adapt.native.samples.blank_infilling import Row
from ascend_adapt.native.samples.cloze_examples import Example
from ascend_adapt.native.step.pipeline import MicroBatch

FILLER = -1
"""Answer of a padding row, which does not count."""


def collate(rows: Sequence[Sequence[Row]], answers: Sequence[int | None], *, examples: int = 1) -> MicroBatch:
    """Return the rows of some examples and their answers as a micro batch, padded to ``examples`` examples.

    An unknown answer (None) counts as the first answer.
    """
    each = len(rows[0])
    batch = glm_loader.collate([row for example in rows for row in example], least=examples * each)
    known = [answer or 0 for answer in answers] + [FILLER] * (len(batch["tokens"]) // each - len(rows))
    return {**batch, "answers": torch.tensor(known).repeat_interleave(each)}


def order_of_rank(count: int, ranks: int, rank: int, seed: int) -> list[int]:
    """Return the example indices of a rank, shuffled by ``seed``; every rank gets the same number of examples."""
    places: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    total = -(-count // ranks) * ranks
    return (places * -(-total // count))[:total][rank::ranks]


class ClozeSamples:
    """Micro batches of the training examples, epoch after epoch, starting after ``consumed`` samples."""

    left = math.inf

    def __init__(
        self, config: TrainConfig, mesh: Mesh, examples: Sequence[Example], pattern: Pattern, consumed: int
    ) -> None:
        cloze = config.cloze
        assert cloze is not None
        self._config, self._mesh, self._examples = config, mesh, examples
        self._rows = [pattern.rows(one) for one in examples]
        self._of_epoch = cloze.micro_batches(config.batch.micro, config.parallel.data)
        self._number = consumed // (config.batch.micro * config.parallel.data)
        self._orders: dict[int, list[int]] = {}

    def next(self, micro_batches: int) -> list[MicroBatch]:
        """Return the next micro batches, on the device."""
        numbers = range(self._number, self._number + micro_batches)
        self._number += micro_batches
        return to_device([self._micro_batch(number) for number in numbers], self._config, self._mesh)

    def close(self) -> None:
        """Do nothing, because there are no workers."""

    def _micro_batch(self, number: int) -> MicroBatch:
        epoch, place = divmod(number, self._of_epoch)
        if epoch not in self._orders:
            ranks, seed = self._config.parallel.data, self._config.seed + epoch
            self._orders = {epoch: order_of_rank(len(self._examples), ranks, self._mesh.data_rank, seed)}
        micro = self._config.batch.micro
        chosen = self._orders[epoch][place * micro : (place + 1) * micro]
        return collate(
            [self._rows[one] for one in chosen],
            [self._examples[one].label for one in chosen],
            examples=micro if self._config.parallel.pipeline > 1 else 1,
        )


def evaluation_batches(
    config: TrainConfig, mesh: Mesh, examples: Sequence[Example], pattern: Pattern
) -> Iterator[MicroBatch]:
    """Yield the batches of this data-parallel rank: every n-th example on n ranks, as many batches on each rank."""
    cloze, ranks = config.cloze, config.parallel.data
    assert cloze is not None
    # All batches of a pipeline must have one size.
    size = config.batch.micro if config.parallel.pipeline > 1 else cloze.eval_micro or config.batch.micro
    mine = examples[mesh.data_rank :: ranks]
    for begin in range(0, -(-len(examples) // ranks), size):
        chosen = [(one, one.label) for one in mine[begin : begin + size]] or [(examples[0], FILLER)]
        batch = collate([pattern.rows(one) for one, _ in chosen], [answer for _, answer in chosen], examples=size)
        yield to_device([batch], config, mesh)[0]


def to_device(parts: Sequence[MicroBatch], config: TrainConfig, mesh: Mesh) -> list[MicroBatch]:
    """Return micro batches on the device; in a pipeline all have the same length."""
    if config.parallel.pipeline > 1:
        parts = glm_loader.of_one_length(parts)
    return [glm_loader.to_device(part, mesh.device) for part in parts]
