"""Loader of blank infilling: the batches of one data-parallel rank, a pure function of their number.

Documents are sampled indefinitely, so the loader never runs out. Batch n of rank r takes the micro batch n * ranks + r
of the samples and draws its blanks from a generator seeded with that number, as GLM does on any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ascend_adapt.config.train_config import Data, TrainConfig
from ascend_adapt.errors import DataError
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples.blank_infilling import Blanks, Row
from ascend_adapt.native.samples.glm_documents import Documents, DocumentSamples, split_documents
from ascend_adapt.native.samples.glm_text import load_vocabulary, token_prefix
from ascend_adapt.native.samples.language_filter import EnglishOnly
from ascend_adapt.native.samples.workers import data_loader, end_workers, owned
from ascend_adapt.native.step.pipeline import MicroBatch

LENGTH_MULTIPLE = 16
"""Rows are padded to a multiple of this number, which gives few shapes and full tiles on every device."""
_ATTEMPTS = 8
_FIRST_CHUNK = 32
_RETRY = 1 << 40


class GlmSamples:
    """Micro batches of one part, starting after ``consumed`` samples; call ``close`` to end the workers."""

    left = math.inf
    """Number of samples left, over all ranks."""

    def __init__(self, config: TrainConfig, mesh: Mesh, part: str, consumed: int = 0) -> None:
        self.device, self._pads = mesh.device, config.parallel.pipeline > 1
        batches = BlankBatches(config, part, mesh.data_rank)
        first = consumed // (config.batch.micro * config.parallel.data)
        self._loader = data_loader(
            batches, workers=config.data.num_workers, device=self.device, batch_size=None, sampler=_Counter(first)
        )
        self._micro_batches: Iterator[MicroBatch] | None = None

    def next(self, micro_batches: int) -> list[MicroBatch]:
        """Return the next micro batches, on the device."""
        if self._micro_batches is None:
            self._micro_batches = iter(self._loader)
        parts = [owned(next(self._micro_batches)) for _ in range(micro_batches)]
        if self._pads:
            parts = of_one_length(parts)
        return [to_device(part, self.device) for part in parts]

    def close(self) -> None:
        """End the workers."""
        end_workers(self._micro_batches)


class BlankBatches(torch.utils.data.Dataset[MicroBatch]):
    """Micro batches of a part by their number on this data-parallel rank."""

    def __init__(self, config: TrainConfig, part: str, data_rank: int) -> None:
        data, blanks = config.data, config.data.blanks
        assert blanks is not None
        tokenizer = load_vocabulary(blanks.vocabulary)
        paths, place = _source(data, part)
        documents = Documents([token_prefix(path, data) for path in paths])
        split = split_documents(
            len(documents.sizes),
            data.split if place is not None else "1",
            own_valid=bool(data.valid),
            own_test=bool(data.test),
        )
        numbers = split[place or 0]
        if numbers is None or not documents.sizes[numbers].sum():
            raise DataError(
                f"{', '.join(paths)}: none of {len(documents.sizes)} documents is in {part} with split {data.split}, "
                "expected at least one — change the split, or add text"
            )
        is_used = None if blanks.language_model is None else EnglishOnly(blanks.language_model, tokenizer)
        self._samples = DocumentSamples(
            documents,
            numbers,
            data.seq_length,
            blanks,
            start=tokenizer.command("ENC"),
            end=tokenizer.command("eos"),
            sentence_ends=tokenizer.sentence_ends,
            is_used=is_used,
        )
        self._order = RandomOrder(1000 * len(numbers)) if blanks.random_samples else None
        self._blanks = Blanks(blanks, tokenizer, data.seq_length)
        self._micro, self._ranks, self._rank = config.batch.micro, config.parallel.data, data_rank
        self._rows = self._micro if config.parallel.pipeline > 1 else 1

    def __getitem__(self, number: int) -> MicroBatch:
        """Return a micro batch.

        Raises:
            DataError: the samples have no room for blanks.
        """
        number = number * self._ranks + self._rank
        places = range(number * self._micro, (number + 1) * self._micro)
        for attempt in range(_ATTEMPTS):
            samples = [self._samples[place if self._order is None else self._order[place]] for place in places]
            # Upstream raises an error if no sample of a batch has room; here the samples are drawn again.
            rows = self._blanks.rows(samples, number + attempt * _RETRY)
            if any(row.loss_mask.any() for row in rows):
                return collate(rows, least=self._rows)
        raise DataError(
            f"batch {number}: none of its samples has room for a blank in {_ATTEMPTS} attempts — increase "
            "--seq-length, or add text"
        )


class RandomOrder:
    """Sample numbers drawn with replacement (--shuffle), computed in order and cached.

    Source: THUDM/GLM@4f61ed72 data_utils/samplers.py RandomSampler, whose generator has torch's default seed.
    """

    def __init__(self, count: int) -> None:
        self._count, self._generator = count, torch.Generator()
        self._start, self._chunk = 0, self._drawn()

    def _drawn(self) -> list[int]:
        drawn: list[int] = torch.randint(self._count, (_FIRST_CHUNK,), generator=self._generator).tolist()
        return drawn

    def __getitem__(self, place: int) -> int:
        if place < self._start:
            self.__init__(self._count)  # type: ignore[misc]
        while place >= self._start + _FIRST_CHUNK:
            self._start, self._chunk = self._start + _FIRST_CHUNK, self._drawn()
        return self._chunk[place - self._start]


class _Counter(torch.utils.data.Sampler[int]):
    """The integers from 0, without end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        number = self._first
        while True:
            yield number
            number += 1


def collate(rows: Sequence[Row], *, least: int = 1) -> MicroBatch:
    """Return rows as a micro batch, padded to one length and to ``least`` rows; padding has no loss."""
    longest = max(len(row.tokens) for row in rows)
    longest = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    count = max(len(rows), least)

    def together(name: str) -> torch.Tensor:
        table = np.zeros((count, longest), np.int64)
        for place, row in enumerate(rows):
            values = getattr(row, name)
            table[place, : len(values)] = values
        return torch.from_numpy(table)

    names = ("tokens", "labels", "position_ids", "block_position_ids")
    prefix = [row.prefix for row in rows] + [0] * (count - len(rows))
    return {
        **{name: together(name) for name in names},
        "loss_mask": together("loss_mask").float(),
        "prefix": torch.tensor(prefix),
    }


def to_device(part: MicroBatch, device: torch.device) -> MicroBatch:
    """Return a micro batch on the device. Its prefix stays on the host, where kernels read it without waiting."""
    return {name: tensor if name == "prefix" else tensor.to(device, non_blocking=True) for name, tensor in part.items()}


def of_one_length(parts: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Pad all micro batches to the length of the longest one."""
    longest = max(part["tokens"].shape[1] for part in parts)
    return [{name: _padded(tensor, longest) for name, tensor in part.items()} for part in parts]


def _padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    return tensor if tensor.dim() < 2 else torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]))


def _source(data: Data, part: str) -> tuple[Sequence[str], int | None]:
    """Return the text of a part, and its index in the split (None for all of the text)."""
    own = {"train": (), "valid": data.valid, "test": data.test}[part]
    return (own, None) if own else (data.train, ("train", "valid", "test").index(part))
