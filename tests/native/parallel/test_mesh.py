"""Ranks and what they hold."""

from __future__ import annotations

import pytest
import torch
from native.small_models import config

from ascend_adapt.config.train_config import Init, Parallel
from ascend_adapt.errors import ConfigError
from ascend_adapt.native.model.initialisation import fill, generator, part
from ascend_adapt.native.parallel.mesh import Mesh, check_world, ranks_over_axes
from ascend_adapt.native.parallel.parameters import ParameterLayout, Placed, rows_of_shard

CPU = torch.device("cpu")


def test_ranks_are_numbered_as_megatron_numbers_them():
    parallel = Parallel(tensor=2, data=3, pipeline=2, stages=(1, 1))
    places = [(mesh.pipeline_rank, mesh.data_rank, mesh.tensor_rank) for mesh in meshes(parallel)]
    assert places == [(p, d, t) for p in range(2) for d in range(3) for t in range(2)]


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)]
)
def test_axes_lie_in_their_order_also_those_of_one_rank(sizes, zero):
    """On torch 2.11 a mesh of two tensor ranks could not be cut by its axes' names, so nothing was saved."""
    tensor, pipeline, data = sizes
    ranks = ranks_over_axes(
        Parallel(tensor=tensor, pipeline=pipeline, data=data, zero_stage=zero, stages=(1,) * pipeline)
    )
    assert list(ranks.stride()) == sorted(ranks.stride(), reverse=True)
    assert ranks.stride() == torch.empty(ranks.shape).stride()
    assert ranks[0, :, 0, 0].tolist() == list(range(tensor))


def test_a_wrong_number_of_ranks():
    with pytest.raises(ConfigError, match="ranks: 6, expected tensor 2 x pipeline 2 x data 2 = 8 — start this number"):
        check_world(Parallel(tensor=2, pipeline=2, data=2), 6)
    check_world(Parallel(tensor=2, pipeline=2, data=2), 8)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 3}, "num_heads: 4, expected a multiple of tensor parallel size 3"),
        ({"tensor": 8}, "num_heads: 4, expected a multiple of tensor parallel size 8"),
        ({"pipeline": 2, "stages": (2, 1)}, r"stages: \(2, 1\), expected numbers of at least 0 whose sum is 4"),
        ({"pipeline": 2, "stages": (4,)}, "stages: 1, expected 2 pipeline ranks x 1 virtual stages"),
        ({"data": 3}, "batch: 8, expected micro 1 x accumulation 2 x data-parallel size 3 = 6"),
        ({"pipeline": 2, "zero_stage": 3}, "zero_stage: 3 with 2 pipeline stages, expected stage 0 or 1"),
        ({"pipeline": 2, "virtual_stages": 2, "micro": 8}, "accumulation: 1, expected a multiple of pipeline size"),
    ],
)
def test_sizes_that_do_not_divide(sizes, message):
    with pytest.raises(ConfigError, match=message):
        config(**sizes)


@pytest.mark.parametrize("cut", [None, 0, 1])
def test_the_parts_are_the_whole(cut):
    """Also where rows do not divide: 7 over 3 data ranks is 3, 3 and 1; 2 over 4 leaves two ranks none."""
    for rows, parallel in (
        (14, Parallel(tensor=2, data=3, zero_stage=3)),
        (4, Parallel(tensor=2, data=4, zero_stage=1)),
    ):
        whole = torch.arange(rows * 4.0).view(rows, 4)
        shape = list(whole.shape)
        if cut is not None:
            shape[cut] //= parallel.tensor
        one = Placed("weight", torch.nn.Parameter(torch.empty(shape)), ParameterLayout(0.0, cut=cut), shape)
        held = {(mesh.tensor_rank, mesh.data_rank): part(whole, one, mesh) for mesh in meshes(parallel)}
        columns = [torch.cat([held[t, d] for d in range(parallel.data)]) for t in range(parallel.tensor)]
        if cut is None:
            assert all(torch.equal(column, whole) for column in columns)
        else:
            assert torch.equal(torch.cat(columns, cut), whole)


def test_rows_are_cut_as_torch_cuts_them():
    for rows in range(1, 12):
        for shards in range(1, 6):
            chunks = torch.arange(rows).chunk(shards)
            for rank in range(shards):
                mine = torch.arange(rows)[rows_of_shard(rows, shards, rank)]
                assert mine.tolist() == (chunks[rank].tolist() if rank < len(chunks) else [])


def test_numbers_depend_on_seed_and_name_only():
    def drawn(*names):
        tensor = torch.empty(64, 32)
        fill(tensor, Init(std=0.02), generator(*names))
        return tensor

    assert torch.equal(drawn(1, "a"), drawn(1, "a"))
    assert not torch.equal(drawn(1, "a"), drawn(1, "b"))
    assert not torch.equal(drawn(1, "a"), drawn(2, "a"))
    assert drawn(1, "a").std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("init", "std"),
    [
        (Init("xavier_uniform"), (2 / 96) ** 0.5),
        (Init("xavier_normal"), (2 / 96) ** 0.5),
        (Init("orthogonal", gain=2.0), 2 / 64**0.5),
        (0.25, 0.0),
    ],
)
def test_kinds_of_first_numbers(init, std):
    tensor = torch.empty(64, 32)
    fill(tensor, init, generator(1, "weight"))
    assert float(tensor.std()) == pytest.approx(std, rel=0.1)
    if init == 0.25:
        assert bool((tensor == 0.25).all())


def meshes(parallel):
    return [Mesh(parallel, rank, CPU) for rank in range(parallel.world_size)]
