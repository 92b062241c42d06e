"""Megatron-core's parameter names, as unmodified releases save them, and torch.distributed.checkpoint's own reader."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as torch_checkpoint
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of

from ascend_adapt.checkpoint.dialects import megatron, megatron_core
from ascend_adapt.checkpoint.torch_files import load_torch_dict

# Saved by Megatron-LM core_v0.12.0 and 5be96267 with --ckpt-format torch_dist, at these sizes.
BLOCK = {
    "self_attention.linear_qkv.layer_norm_weight": (32,),
    "self_attention.linear_qkv.layer_norm_bias": (32,),
    "self_attention.linear_qkv.weight": (96, 32),
    "self_attention.linear_qkv.bias": (96,),
    "self_attention.linear_proj.weight": (32, 32),
    "self_attention.linear_proj.bias": (32,),
    "mlp.linear_fc1.layer_norm_weight": (32,),
    "mlp.linear_fc1.layer_norm_bias": (32,),
    "mlp.linear_fc1.weight": (128, 32),
    "mlp.linear_fc1.bias": (128,),
    "mlp.linear_fc2.weight": (32, 128),
    "mlp.linear_fc2.bias": (32,),
}
OUTSIDE = {
    "embedding.word_embeddings.weight": (96, 32),
    "embedding.position_embeddings.weight": (16, 32),
    "decoder.final_layernorm.weight": (32,),
    "decoder.final_layernorm.bias": (32,),
}
LINEAR = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")


@pytest.fixture(scope="module")
def state():
    return state_of(MODELS["gpt2"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_torch_dist_by_megatrons_names(tmp_path, state):
    megatron_core.write(output_of(MODELS["gpt2"], state), new_folder(tmp_path / "out"))
    release = tmp_path / "out/release"
    reader = torch_checkpoint.FileSystemReader(release)
    entries = reader.read_metadata().state_dict_metadata
    sizes = {name: tuple(one.size) for name, one in entries.items() if hasattr(one, "size")}
    assert sizes == OUTSIDE | {f"decoder.layers.{name}": (2, *shape) for name, shape in BLOCK.items()}
    required = {f"decoder.layers.{name}._extra_state/shard_{number}_2" for name in LINEAR for number in (0, 1)}
    assert required <= entries.keys() - sizes.keys()
    read = {"decoder.layers.mlp.linear_fc1.weight": torch.empty(2, 128, 32)}
    torch_checkpoint.load(read, storage_reader=reader, no_dist=True)
    expected = [state[f"layers.{number}.mlp.dense_h_to_4h.weight"] for number in (0, 1)]
    assert torch.equal(read["decoder.layers.mlp.linear_fc1.weight"], torch.stack(expected))
    # Megatron-core 0.12 reads these two attributes, and 0.19 compares them with its own.
    arguments = load_torch_dict(release / "common.pt")["args"]
    assert (arguments.tensor_model_parallel_size, arguments.pipeline_model_parallel_size) == (1, 1)


def test_transformer_engines_names_have_the_extra_states_that_it_requires(tmp_path, state):
    output = output_of(MODELS["gpt2"], state, pipeline=2)
    megatron.write(output, new_folder(tmp_path / "out"), names=megatron.TRANSFORMER_ENGINE)
    first, last = (
        load_torch_dict(tmp_path / f"out/release/mp_rank_00_00{stage}/model_optim_rng.pt")["model"] for stage in (0, 1)
    )
    extra = {f"{name}._extra_state" for name in LINEAR}
    block = {f"decoder.layers.0.{name}" for name in BLOCK.keys() | extra}
    embedding = {name for name in OUTSIDE if name.startswith("embedding.")}
    assert first.keys() == block | embedding
    norm = OUTSIDE.keys() - embedding | {"decoder.final_layernorm._extra_state"}
    assert last.keys() == block | norm | {"output_layer.weight"}
