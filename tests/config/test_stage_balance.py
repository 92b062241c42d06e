from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
from native.configurations import config

from ascend_adapt.config.flops import head_flops, layer_flops
from ascend_adapt.config.stage_balance import unbalanced
from ascend_adapt.config.train_config import Batch, Model, Parallel
from ascend_adapt.recipes import dialects
from ascend_adapt.recipes.stages import stages_of_layout

GPT_1_3B = Model(50257, 50304, 2048, 24, 16, 16, 128, 8192, 2048)


def run(model, stages, pipeline, micro_batches=8, **parallel):
    shape = Parallel(pipeline=pipeline, virtual_stages=len(stages) // pipeline, stages=tuple(stages), **parallel)
    batch = Batch(1, micro_batches, micro_batches)
    return config(model=model, parallel=shape, batch=batch, data={"seq_length": model.max_positions})


def head_in_layers(model):
    return head_flops(model) / layer_flops(model, model.max_positions)


def simulated(costs, micro_batches):
    """Return when 1F1B ends: each stage runs its passes in order, as soon as those that they depend on have ended."""
    count, done, free = len(costs), {}, [0.0] * len(costs)
    orders = []
    for stage in range(count):
        ahead = min(micro_batches, count - stage)
        order = [("forward", number) for number in range(ahead)]
        for number in range(micro_batches):
            order.append(("backward", number))
            if ahead + number < micro_batches:
                order.append(("forward", ahead + number))
        orders.append(order)
    while any(orders):
        for stage, order in enumerate(orders):
            kind, number = order[0] if order else (None, None)
            before = {"forward": stage - 1, "backward": stage + 1}.get(kind, -1)
            ready = done.get((kind, before, number)) if 0 <= before < count else 0.0
            if kind and ready is not None:
                free[stage] = max(free[stage], ready) + costs[stage] * {"forward": 1 / 3, "backward": 2 / 3}[kind]
                done[kind, stage, number] = free[stage]
                order.pop(0)
    return max(free)


def expected(note):
    """Return the stages that a note recommends, and the share of a step that they save."""
    found = re.search(r"expected ([\d, ]+), which would shorten a step by about (\d+)% or more", note)
    return tuple(map(int, found[1].split(", "))), int(found[2]) / 100


@pytest.mark.parametrize(("layers", "pipeline"), [(8, 2), (8, 4), (9, 3), (12, 4)])
def test_hardly_any_other_stages_are_faster(layers, pipeline):
    """The estimate neglects where the slowest stage is, and the options cannot request all stages."""
    model = Model(9000, 9000, 512, layers, 8, 8, 64, 2048, 512)
    head = head_in_layers(model)
    stages, gain = expected(unbalanced(run(model, (layers // pipeline,) * pipeline, pipeline)))

    def time(sizes):
        return simulated([*sizes[:-1], sizes[-1] + head], 8)

    every = [sizes for sizes in product(range(1, layers), repeat=pipeline) if sum(sizes) == layers]
    assert time(stages) < 1.02 * min(map(time, every))
    assert 0.03 <= gain < 0.005 + 1 - time(stages) / time((layers // pipeline,) * pipeline)


@pytest.mark.parametrize(
    ("stages", "pipeline", "recommended"),
    [
        ((12, 12), 2, "13, 11, .* --decoder-first-pipeline-num-layers 13 --decoder-last-pipeline-num-layers 11$"),
        ((6, 6, 6, 6), 4, "7, 6, 6, 5, .* --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5$"),
        ((6, 6, 6, 6), 2, "6, 6, 7, 5, .* --pipeline-model-parallel-layout 'Et\\*6|t\\*6|t\\*7|t\\*5L' instead of"),
    ],
)
def test_what_is_recommended_is_balanced(stages, pipeline, recommended):
    note = unbalanced(run(GPT_1_3B, stages, pipeline))
    assert re.search(recommended, note)
    assert "as much as 1.8 layers" in note
    assert unbalanced(run(GPT_1_3B, expected(note)[0], pipeline)) is None


def test_a_recommended_layout_has_the_recommended_stages():
    note = unbalanced(run(GPT_1_3B, (6,) * 4, 2))
    layout = re.search("'(.*)'", note)[1]
    assert stages_of_layout(layout, 24, 2) == (2, expected(note)[0])


def test_recomputed_layers_cost_more_than_the_head():
    assert "as much as 1.3 layers" in unbalanced(run(GPT_1_3B, (6,) * 4, 4, 32, recompute="full"))


@pytest.mark.parametrize(
    ("stages", "pipeline"), [((24,), 1), ((13, 11), 2), ((4, *(3,) * 6, 2), 8), ((0, *(1,) * 24, 0), 2)]
)
def test_stages_that_no_option_can_improve(stages, pipeline):
    assert unbalanced(run(GPT_1_3B, stages, pipeline)) is None


def test_a_run_that_only_evaluates_has_no_steps_to_shorten():
    assert unbalanced(replace(run(GPT_1_3B, (12, 12), 2), eval_only=True)) is None


SIZES = {
    "megatron": "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 64 "
    "--micro-batch-size 1 --global-batch-size 4 --train-iters 10 --lr 1e-3 --data-path x",
    "oneflow": "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 "
    "--global-batch-size 4 --train-iters 10 --dataset x --lr-decay-style cosine --lr-decay-iters 10",
}


@pytest.mark.parametrize("dialect", SIZES)
def test_every_dialect_has_the_recommended_options(dialect):
    words = f"{SIZES[dialect]} --vocab-size 1500 --pipeline-model-parallel-size 2"
    note = unbalanced(dialects.read(dialect, words.split()).build(2)[0])
    stages, _ = expected(note)
    assert stages != (4, 4)
    options = note.partition("pass ")[2]
    assert dialects.read(dialect, f"{words} {options}".split()).build(2)[0].parallel.stages == stages
