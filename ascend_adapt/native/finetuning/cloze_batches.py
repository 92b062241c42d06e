"""Batches of a cloze task: each data-parallel rank's examples of an epoch, a pure function of the batch's number.

The order is that of torch's DistributedSampler, as in THUDM/GLM@4f61ed72 tasks/data_utils.py (build_data_loader): drawn
for each epoch from the seed, with the first examples again at its end if they do not divide by the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ascend_adapt.native.config.train_config import TrainConfig
from ascend_adapt.native.finetuning.patterns import Pattern
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples import glm_loader
from ascend_adapt.native.samples.blank_infilling import Row
from ascend_adapt.native.samples.cloze_examples import Example
from ascend_adapt.native.step.pipeline import MicroBatch


def collate(rows: Sequence[Sequence[Row]], labels: Sequence[int | None], *, examples: int) -> MicroBatch:
    """Return the rows of some examples as a micro batch; up to ``examples`` are filled up with others that count not."""
    each = len(rows[0])
    batch = glm_loader.collate([row for example in rows for row in example], least=examples * each)
    answers = [label or 0 for label in labels] + [-1] * (len(batch["tokens"]) // each - len(rows))
    return {**batch, "answers": torch.tensor(answers).repeat_interleave(each)}


def order_of_rank(count: int, ranks: int, rank: int, seed: int | None = None) -> list[int]:
    """Return the examples of a rank by number, shuffled by ``seed`` if it is given; ranks have equally many."""
    places = list(range(count))
    if seed is not None:
        places = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
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
        """Do nothing: there are no workers."""

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


def to_device(parts: Sequence[MicroBatch], config: TrainConfig, mesh: Mesh) -> list[MicroBatch]:
    """Return micro batches on the device, of one length in a pipeline."""
    if config.parallel.pipeline > 1:
        parts = glm_loader.of_one_length(parts)
    return [{name: tensor.to(mesh.device, non_blocking=True) for name, tensor in part.items()} for part in parts]
