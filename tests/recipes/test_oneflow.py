from __future__ import annotations

import pytest

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import dialects

GUIDE = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 8 "
    "--num-gpus-per-node 1 --train-iters 500000 --learning-rate 0.00015 --dataset text_document --seq-length 1024 "
    "--split 949,50,1 --min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters 320000 --lr-warmup-fraction 0.01 "
    "--weight-decay 1e-2 --optimizer adamw --clip-grad 1.0 --vocab-size 50257 --load checkpoint --save checkpoint "
    "--save-interval 10000 --log-interval 100 --checkpoint-activations --multihead-attention-fusion --fp16"
)


def read(more="", world=1, base=GUIDE):
    return dialects.read("oneflow", [*base.split(), *more.split()]).build(world)


def test_the_guides_run():
    config, notes = read()
    assert (config.batch.accumulation, config.data.seed, config.data.split) == (2, 12345, "949,50,1")
    assert (config.model.activation, config.model.max_positions, config.model.padded_vocab_size) == (
        "gelu",
        1024,
        50304,
    )
    assert (config.schedule.dialect, config.schedule.warmup, config.schedule.decay) == ("oneflow", 3200, 320000)
    assert config.logging.table
    assert config.eval_interval == 0  # it never evaluates
    assert any("numpy does not have OneFlow's random generator" in note for note in notes)
    assert any("multihead_attention_fusion" in note for note in notes)


def test_a_nan_ends_a_run_unless_switched_off():
    assert read()[0].check_for_nan_in_loss_and_grad
    assert not read("--no-check-for-nan-in-loss-and-grad")[0].check_for_nan_in_loss_and_grad


def test_metrics_without_a_table_and_the_ranks_it_names():
    recipe = dialects.read("oneflow", [*GUIDE.split(), "--metric-print-format", "normal", "--num-accumulation-steps=2"])
    assert (recipe.ranks_per_node, recipe.nodes, recipe.save) == (1, None, "checkpoint")
    several = dialects.read("oneflow", [*GUIDE.split(), "--num-nodes", "2", "--node-ips", "a,b,c"])
    assert (several.nodes, several.node_ips) == (2, ("a", "b"))
    assert not recipe.build(1)[0].logging.table


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--lr-decay-style linear", "--lr-decay-style: 'linear', expected cosine, the only one that upstream supports"),
        ("--optimizer sgd", "--optimizer: 'sgd', expected adamw"),
        ("--num-nodes 2 --node-ips a", "--node-ips: 1 addresses, expected one for each of 2 nodes"),
        ("--num-accumulation-steps 3", "8, expected micro batch 4 x accumulation 3 x data-parallel size 1 = 12"),
        ("--tensor-model-parallel-size 2", "ranks: 1, expected a multiple of tensor 2 x pipeline 1 = 2"),
        ("--min-lr 1", "min_lr: 1.0, expected at most lr = 0.00015"),
        ("--metric-print-format csv", "invalid choice: 'csv'"),
    ],
)
def test_an_invalid_command_line_is_one_sentence(more, message):
    with pytest.raises(ConfigError, match=message):
        read(more)
