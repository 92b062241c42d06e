"""Samplers: micro batches of a data-parallel rank, as pure functions of the number of consumed samples.

Sources: Megatron-LM@v2.5 megatron/data/data_samplers.py, Megatron-LM@core_v0.9.0 megatron/legacy/data/data_samplers.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ascend_adapt.errors import SettingsError


class ResumableSampler(torch.utils.data.Sampler[list[int]]):
    """Micro batches of sample numbers for one data-parallel rank, determined by ``consumed_samples`` alone.

    As in Megatron, each step takes the next micro_batch_size * data_parallel_size samples, and rank r gets the r-th
    micro_batch_size of them. An incomplete last step is dropped. Pass the sampler to a DataLoader as ``batch_sampler``.
    """

    def __init__(
        self,
        total_samples: int,
        *,
        consumed_samples: int = 0,
        micro_batch_size: int = 1,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
    ):
        for name, value, least in (
            ("consumed_samples", consumed_samples, 0),
            ("micro_batch_size", micro_batch_size, 1),
            ("data_parallel_size", data_parallel_size, data_parallel_rank + 1),
            ("data_parallel_rank", data_parallel_rank, 0),
        ):
            if value < least:
                raise SettingsError(f"{name}: {value}, expected at least {least} — check the sampler's arguments")
        self.total_samples = total_samples
        self.consumed_samples = consumed_samples
        self._micro = micro_batch_size
        self._rank = data_parallel_rank
        self._ranks = data_parallel_size
        self._step = micro_batch_size * data_parallel_size

    def __len__(self) -> int:
        return max(0, self.total_samples - self.consumed_samples) // self._step

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            first = self.consumed_samples + step * self._step + self._rank * self._micro
            yield list(range(first, first + self._micro))


class CyclicSampler(ResumableSampler):
    """Endless micro batches, as with Megatron's --dataloader-type cyclic. The seed of each epoch's order is its number.

    With ``data_sharding``, each rank shuffles a fixed part of the samples; otherwise all ranks share one order
    (--no-data-sharding). The length is the rest of the current epoch. An epoch has the same number of steps on every
    rank. Without sharding, upstream gives some ranks one more step if the samples do not fill the last step.
    """

    def __init__(
        self,
        total_samples: int,
        *,
        consumed_samples: int = 0,
        micro_batch_size: int = 1,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        data_sharding: bool = True,
    ):
        super().__init__(
            total_samples,
            consumed_samples=consumed_samples,
            micro_batch_size=micro_batch_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        )
        self._data_sharding = data_sharding
        self._steps = total_samples // self._step
        if not self._steps:
            raise SettingsError(
                f"total_samples: {total_samples}, expected at least {self._step} for one step — use more text"
            )
        if consumed_samples % self._step:
            raise SettingsError(
                f"consumed_samples: {consumed_samples}, expected a multiple of the step {self._step} — resume with the "
                "batch size and ranks that consumed them"
            )

    def __len__(self) -> int:
        return self._steps - self.consumed_samples // self._step % self._steps

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = divmod(self.consumed_samples // self._step, self._steps)
        while True:
            order = self._order(epoch)
            for step in range(done, self._steps):
                yield order[step * self._micro : (step + 1) * self._micro]
            epoch, done = epoch + 1, 0

    def _order(self, epoch: int) -> list[int]:
        """Return this rank's samples in one epoch, in order."""
        generator = torch.Generator()
        generator.manual_seed(epoch)
        if self._data_sharding:
            count = self._steps * self._micro
            begin = self._rank * count
            return [begin + place for place in torch.randperm(count, generator=generator).tolist()]
        count = self.total_samples // self._micro * self._micro
        order: list[int] = torch.randperm(count, generator=generator).tolist()
        return order[self._rank :: self._ranks]
