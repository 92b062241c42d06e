"""ZeRO-3 holds one bucket of blocks and gathers the next one meanwhile; test_zero compares what it computes."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from native.small_models import GPT2, NEOX, batch, config
from torch.testing._internal.distributed.fake_pg import FakeStore

from ascend_adapt.config import buckets
from ascend_adapt.config.train_config import Precision
from ascend_adapt.native.parallel import block_weights, collectives
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

FORWARD, BACKWARD = [0, 1, 2, 3], [2, 1, 0]


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def trainer(request, monkeypatch):
    """trainer(**sizes): the trainer of the first rank, whose collectives do nothing; each block is a bucket."""
    monkeypatch.setattr(buckets, "BUCKET", 10_000)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)

    def made(model=GPT2, micro=8 // request.param, **sizes):
        settings = config(model, micro=micro, data=request.param, zero_stage=3, **sizes)
        settings = replace(settings, precision=Precision("bf16"))
        return Trainer(settings, meshes.build(settings.parallel, torch.device("cpu")))

    yield made
    dist.destroy_process_group()


@pytest.fixture
def gathers(monkeypatch):
    """The buckets of blocks in the order in which they are gathered."""
    found = []

    class Recorded(block_weights.BlockWeights):
        def __init__(self, given, numbers):
            super().__init__([_Recorded(bucket, number, found) for number, bucket in enumerate(given)], numbers)

    monkeypatch.setattr("ascend_adapt.native.parallel.zero.BlockWeights", Recorded)
    return found


class _Recorded:
    def __init__(self, bucket, number, found):
        self.bucket, self.number, self.found = bucket, number, found

    def gather(self):
        self.found.append(self.number)
        return self.bucket.gather()


def stepped(trainer):
    settings = trainer.config
    trainer.step(batch(0, settings), settings.batch.accumulation, 1e-3, 0.1)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", [GPT2, NEOX], ids=["gpt2", "neox"])
def test_each_pass_gathers_in_its_order(trainer, gathers, model, recompute):
    made = trainer(model, recompute=recompute)
    stepped(made)
    assert gathers == FORWARD + BACKWARD
    gathers.clear()
    made.evaluate(batch(0, made.config), 1)
    assert gathers == FORWARD


def test_the_bucket_that_a_pass_ends_with_is_not_gathered_again(trainer, gathers):
    made = trainer(micro=2)
    stepped(made)
    assert gathers == FORWARD + BACKWARD + (made.config.batch.accumulation - 1) * (FORWARD[1:] + BACKWARD)


def test_runs_of_several_buckets_are_recomputed(trainer, gathers):
    stepped(trainer(recompute="full", recompute_layers=2))
    assert gathers == [*FORWARD, 2, 3, 2, 1, 0, 1, 0]


def test_the_weights_of_one_bucket_are_held(trainer, monkeypatch):
    """While a bucket computes, at most one more is gathered."""
    made = trainer()
    masters = {id(one.parameter): one for one in made.parameters}
    memory, bucket = {}, 0
    for block in made.decoders[0].layers.values():
        of_block = {}
        for module in block.modules():
            for name, master in getattr(module, "masters", {}).items():
                if masters[id(master)].is_matrix:
                    copy = getattr(module, name)
                    of_block[copy.data_ptr()] = copy.numel() * copy.element_size()
                    memory[copy.untyped_storage().data_ptr()] = copy.untyped_storage().nbytes()
        bucket = max(bucket, sum(of_block.values()))
    assert list(memory.values()) == [bucket]

    live, most = [], [0]
    original = collectives.all_gather

    def watched(whole, mine, group, **named):
        if whole.nbytes == bucket:
            live.append(weakref.ref(whole.untyped_storage()))
            most.append(sum(one() is not None for one in live))
        return original(whole, mine, group, **named)

    monkeypatch.setattr(collectives, "all_gather", watched)
    stepped(made)
    assert max(most) == (1 if made.config.parallel.data > 1 else 0)
