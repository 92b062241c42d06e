"""Which samples a step gets, whatever the data-parallel size, and from wherever a run continues."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ascend_adapt.config.train_config import Batch, Parallel
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.samples.loader import Samples

STEPS, SIZE = 8, 8


def steps(settings, ranks, first, last):
    """Return the tokens of each step's samples, all ranks together, sorted."""
    accumulation = SIZE // ranks
    settings = replace(settings, batch=Batch(1, accumulation, SIZE), parallel=Parallel(data=ranks, stages=(4,)))
    each = []
    for rank in range(ranks):
        mesh = meshes.Mesh(settings.parallel, rank, torch.device("cpu"))
        samples = Samples(settings, mesh, "train", first * SIZE)
        each.append([samples.next(accumulation)["tokens"] for _ in range(first, last)])
    together = [torch.cat(parts) for parts in zip(*each, strict=True)]
    return [sorted(map(tuple, step.tolist())) for step in together]


@pytest.fixture
def long(settings):
    """A run of 64 samples, of which an epoch has about 30."""
    model = replace(settings.model, max_positions=64)
    return replace(settings, model=model, data=replace(settings.data, seq_length=64))


def test_a_step_of_many_micro_batches_needs_few_descriptors(settings):
    few = replace(settings, data=replace(settings.data, num_workers=1))
    samples = Samples(few, meshes.Mesh(few.parallel, 0, torch.device("cpu")), "train")
    samples.next(1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, before[1]))
    try:
        assert len(samples.next(100)["tokens"]) == 100 * few.batch.micro
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        samples.close()


def test_an_epoch_ends_within_them(long):
    ids = Path(f"{long.data.train[0]}.bin").stat().st_size // 2
    assert ids < STEPS * SIZE * long.data.seq_length


@pytest.mark.parametrize("stop", [2, 4, 5])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_another_data_parallel_size_continues_with_the_same_samples(long, ranks, stop):
    whole = steps(long, 1, 0, STEPS)
    assert steps(long, 2, 0, stop) + steps(long, ranks, stop, STEPS) == whole
