"""The process groups of a pipeline's transfers, on torch's fake process group: nothing is sent."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from native.small_models import batch, config
from torch.distributed.pipelining import schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

SIZES = {"pipeline": 4, "virtual_stages": 2, "stages": (1, 0, 1, 0, 1, 0, 1, 0)}


@pytest.fixture
def transfers(monkeypatch):
    """transfers(rank, sizes): the (kind, peer, ranks of the group) of each transfer of a step of one rank, in order."""
    seen = []
    posted = schedules._batch_p2p

    def post(operations, desc=None):
        seen.extend((one.op, one.peer, dist.get_process_group_ranks(one.group)) for one in operations)
        return posted(operations, desc)

    def run(rank, sizes):
        settings = config(**sizes)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=settings.parallel.world_size)
        try:
            trainer = Trainer(settings, meshes.build(settings.parallel, torch.device("cpu")))
            seen.clear()
            trainer.step(batch(0, settings, trainer.mesh.data_rank), settings.batch.accumulation, 1e-3, 0.0)
            return list(seen)
        finally:
            dist.destroy_process_group()

    def agree(_, stages, *others):
        """Replace the vote of the ranks on whether they know all shapes: other ranks would not answer."""
        for stage in stages:
            stage._inference_mode = schedules.InferenceMode.STATIC

    monkeypatch.setattr(schedules._PipelineSchedule, "_warmup_p2p", agree)
    monkeypatch.setattr(schedules, "_batch_p2p", post)
    return run


@pytest.mark.parametrize("others", [{}, {"data": 2}])
def test_interleaved_ranks_transfer_in_groups_of_two_and_in_the_same_order(transfers, others):
    sizes = {**SIZES, **others}
    ranks = 4 * others.get("data", 1)
    orders = defaultdict(list)
    for rank in range(ranks):
        for kind, peer, members in transfers(rank, sizes):
            assert sorted(members) == sorted((rank, peer))
            orders[rank, peer].append(kind)
    assert len(orders) == 2 * ranks
    for (rank, peer), kinds in orders.items():
        assert set(kinds) == {dist.isend, dist.irecv}
        # Otherwise both ranks would wait for each other in different transfers.
        assert [kind == dist.isend for kind in kinds] == [kind == dist.irecv for kind in orders[peer, rank]]


def test_other_pipelines_transfer_in_the_pipelines_group(transfers):
    for sizes in ({"pipeline": 4}, {"pipeline": 2, "virtual_stages": 2}):
        assert {tuple(members) for _, _, members in transfers(0, sizes)} == {tuple(range(sizes["pipeline"]))}


def test_transfers_that_torch_posts_in_batches_are_in_one_group(transfers, monkeypatch):
    """torch 2.6 posts those with both neighbours at once."""
    kind = schedules.ScheduleInterleaved1F1B
    monkeypatch.setattr(kind, "_step_microbatches", schedules.PipelineScheduleMulti._step_microbatches)
    assert {tuple(members) for _, _, members in transfers(1, SIZES)} == {(0, 1, 2, 3)}
