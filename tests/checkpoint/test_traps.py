"""Traps of upstream's layouts, each laid out here by its definition."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of

from ascend_adapt.checkpoint import merge_qkv, split_qkv
from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import deepspeed_writing, megatron
from ascend_adapt.checkpoint.vocabulary_rows import with_rows
from ascend_adapt.config.partition import padded
from ascend_adapt.errors import CheckpointError

HEADS, DIM = 4, 8
WEIGHT = "layers.0.attention.query_key_value.weight"


def test_blocks_are_split_by_heads_within_each_block():
    """GLM: a rank has the queries, keys and values of its own heads, one block after the other."""
    query, key, value = torch.arange(3 * HEADS * DIM).view(3, HEADS * DIM, 1)
    shards = split_qkv(torch.cat([query, key, value]), 2, layout="block", num_heads=HEADS)
    half = HEADS * DIM // 2
    assert torch.equal(shards[1], torch.cat([query[half:], key[half:], value[half:]]))
    assert torch.equal(merge_qkv(shards, 2, layout="block", num_heads=HEADS), torch.cat([query, key, value]))
    assert torch.equal(merge_qkv(torch.cat(shards), 2, layout="block", num_heads=HEADS), torch.cat([query, key, value]))


def test_heads_are_split_whole():
    whole = torch.randn(3 * HEADS * DIM, 5)
    shards = split_qkv(whole, 4, layout="per_head", num_heads=HEADS)
    assert torch.equal(torch.cat(shards), whole)
    with pytest.raises(ValueError, match="heads by ranks"):
        split_qkv(whole, 3, num_heads=HEADS)
    with pytest.raises(ValueError, match="layout: 'other'"):
        split_qkv(whole, 2, layout="other", num_heads=HEADS)


def test_padded_vocabularies_of_gpt2():
    """Case ckpt-2."""
    assert [padded(50257, 128, ranks) for ranks in (1, 2, 4, 8)] == [50304, 50432, 50688, 51200]


def test_rows_that_are_added_are_the_mean_of_all_ids():
    table = torch.tensor([[1.0], [3.0], [100.0]])
    assert with_rows(table, 4, ids=2).flatten().tolist() == [1.0, 3.0, 100.0, 2.0]
    assert with_rows(table, 2, ids=2).flatten().tolist() == [1.0, 3.0]


def write_neox(path, model, change):
    """Write two tensor-parallel ranks, and let ``change`` edit each rank's first block."""
    deepspeed_writing.write_neox(output_of(model, state_of(model), tensor=2), new_folder(path))
    for rank in range(2):
        file = path / "global_step0" / f"layer_02-model_{rank:02d}-model_states.pt"
        layer = torch.load(file)
        change(rank, layer)
        torch.save(layer, file)
    return open_checkpoint(path)


@pytest.mark.parametrize(("name", "expected"), [("neox", 3.0), ("neox one after the other", 1.5)])
def test_biases_of_row_parallel_layers_are_summed_only_where_ranks_add_each_its_own(tmp_path, name, expected):
    """GPT-NeoX adds each rank's own bias before the sum only with a parallel residual; its converter always sums."""

    def change(rank, layer):
        layer["attention.dense.bias"].fill_(1.0 + rank)

    source = write_neox(tmp_path / "neox", MODELS[name], change)
    assert set(source.read("layers.0.attention.dense.bias").tolist()) == {expected}
    assert bool(source.differing) == (expected == 1.5)


def test_norms_that_differ_between_ranks_are_averaged_and_named(tmp_path):
    def change(rank, layer):
        layer["input_layernorm.weight"].fill_(float(rank))

    source = write_neox(tmp_path / "neox", MODELS["neox"], change)
    assert set(source.read("layers.0.input_norm.weight").tolist()) == {0.5}
    assert source.differing == ["layers.0.input_norm.weight"]


def test_gpt_neox_has_the_gate_in_the_second_half(tmp_path):
    source = write_neox(tmp_path / "neox", MODELS["llama"], lambda rank, layer: None)
    first = torch.load(tmp_path / "neox/global_step0/layer_02-model_00-model_states.pt")["mlp.linear1.weight"]
    half = first.shape[0] // 2
    assert torch.equal(first[half:], source.read("layers.0.mlp.gate.weight")[:half])
    assert torch.equal(first[:half], source.read("layers.0.mlp.dense_h_to_4h.weight")[:half])


def megatron_file(path, model, change):
    """Write one rank as Megatron-LM v2.5 does, with arguments, and let ``change`` edit its state."""
    megatron.write(output_of(model, state_of(model)), new_folder(path))
    file = path / "release/mp_rank_00/model_optim_rng.pt"
    state = torch.load(file)
    change(state)
    torch.save(state, file)


@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
def test_query_key_value_of_every_checkpoint_version_of_megatron(tmp_path, version):
    """Source: Megatron-LM@v2.5 fix_query_key_value_ordering, which makes [np, 3, hn] of those of versions 0 and 1."""
    model = MODELS["gpt2"]
    rows = state_of(model)[WEIGHT]
    as_heads = rows.view(HEADS, 3, DIM, -1)
    orders = {0: as_heads.transpose(0, 1), 1.0: as_heads.transpose(1, 2)}

    def change(state):
        encoder = state["model"]["language_model"]["encoder"]
        for name in list(encoder):
            if "query_key_value" in name:
                heads = encoder[name].view(HEADS, 3, DIM, *encoder[name].shape[1:])
                by_version = {0: heads.transpose(0, 1), 1.0: heads.transpose(1, 2)}
                encoder[name] = by_version.get(version, heads).reshape(encoder[name].shape).clone()
        state["checkpoint_version"] = version

    megatron_file(tmp_path / "megatron", model, change)
    written = torch.load(tmp_path / "megatron/release/mp_rank_00/model_optim_rng.pt")["model"]["language_model"][
        "encoder"
    ]
    expected = orders.get(version, as_heads).reshape(rows.shape)
    assert torch.equal(written["layers.0.self_attention.query_key_value.weight"], expected)
    assert torch.equal(open_checkpoint(tmp_path / "megatron").read(WEIGHT), rows)


def test_virtual_stages_are_put_in_model_order(tmp_path):
    """Of two stages with two virtual ones, the first has blocks 0 and 2."""
    model = replace(MODELS["gpt2"], num_layers=4)
    state = state_of(model)
    megatron.write(output_of(model, state, pipeline=4), new_folder(tmp_path / "four"))
    stages = [torch.load(tmp_path / f"four/release/mp_rank_00_{one:03d}/model_optim_rng.pt") for one in range(4)]
    for rank in range(2):
        chunks = {f"model{chunk}": stages[2 * chunk + rank]["model"] for chunk in range(2)}
        rest = {name: value for name, value in stages[0].items() if name != "model"}
        file = tmp_path / f"two/iter_0000010/mp_rank_00_{rank:03d}/model_optim_rng.pt"
        new_folder(file.parent)
        torch.save({**rest, **chunks}, file)
    (tmp_path / "two/latest_checkpointed_iteration.txt").write_text("10")
    source = open_checkpoint(tmp_path / "two")
    assert source.layout["virtual_stages"] == 2
    assert [one.name for one in source.parameters() if not torch.equal(source.read(one.name), state[one.name])] == []


def test_the_arguments_of_megatron_describe_the_model(tmp_path):
    """Also as upstream saves them, a Namespace, which is not loaded."""
    model = MODELS["gpt2"]
    arguments = argparse.Namespace(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=16,
        seq_length=16,
        encoder_seq_length=16,
        bias_gelu_fusion=True,
        ffn_hidden_size=128,
        kv_channels=8,
    )

    def change(state):
        del state["ascend_adapt_model"]
        state["args"] = arguments

    megatron_file(tmp_path / "megatron", model, change)
    found = open_checkpoint(tmp_path / "megatron").model
    assert (found.activation, found.padded_vocab_size, found.positions) == ("gelu_tanh", 96, "learned")
    arguments.apply_layernorm_1p = True
    megatron_file(tmp_path / "other", model, change)
    with pytest.raises(CheckpointError, match="apply_layernorm_1p True, which the native model does not support"):
        open_checkpoint(tmp_path / "other")


def test_buffers_of_old_releases_are_dropped_and_other_tensors_are_not(tmp_path):
    def with_buffers(rank, layer):
        layer["attention.bias"] = layer["attention.masked_bias"] = torch.zeros(1)

    write_neox(tmp_path / "buffers", MODELS["neox"], with_buffers)
    with pytest.raises(CheckpointError, match=r"has unexpected layers\.0\.attention\.surprise, expected exactly"):
        write_neox(
            tmp_path / "more", MODELS["neox"], lambda rank, layer: layer.update({"attention.surprise": torch.ones(1)})
        )
