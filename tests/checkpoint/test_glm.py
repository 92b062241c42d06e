"""GLM's checkpoints for other numbers of ranks, beside the layout by its definition."""

from __future__ import annotations

import json

import torch
from checkpoint.small_checkpoints import new_folder

from ascend_adapt.cli import main

H, HEADS, ROWS = 16, 4, 64


def parameters():
    dice = torch.Generator().manual_seed(3)
    shapes = {
        "word_embeddings.weight": (ROWS, H),
        "transformer.position_embeddings.weight": (9, H),
        "transformer.block_position_embeddings.weight": (9, H),
        "transformer.layers.0.attention.query_key_value.weight": (3 * H, H),
        "transformer.layers.0.attention.query_key_value.bias": (3 * H,),
        "transformer.layers.0.attention.dense.weight": (H, H),
        "transformer.layers.0.attention.dense.bias": (H,),
        "transformer.layers.0.mlp.dense_h_to_4h.weight": (4 * H, H),
        "transformer.layers.0.mlp.dense_h_to_4h.bias": (4 * H,),
        "transformer.layers.0.mlp.dense_4h_to_h.weight": (H, 4 * H),
        "transformer.layers.0.mlp.dense_4h_to_h.bias": (H,),
        "transformer.final_layernorm.weight": (H,),
    }
    return {name: torch.randn(shape, generator=dice) for name, shape in shapes.items()}


def convert(source, output, *words):
    return main(["convert", "--input", str(source), "--output", str(output), "--to", "glm", *words])


def test_ranks_get_their_own_heads_of_each_block_and_give_them_back(tmp_path, capsys):
    whole = parameters()
    folder = new_folder(tmp_path / "one/126000")
    torch.save({"module": whole, "iteration": 126000, "optimizer": {}}, folder / "mp_rank_00_model_states.pt")
    (tmp_path / "one/latest_checkpointed_iteration.txt").write_text("126000\n")
    assert convert(tmp_path / "one", tmp_path / "four", "--tp", "4") == 0
    assert "12 parameters are identical, bit for bit" in capsys.readouterr().out
    rank = torch.load(tmp_path / "four/126000/mp_rank_01_model_states.pt")["module"]
    query, key, value = whole["transformer.layers.0.attention.query_key_value.weight"].view(3, HEADS, H // HEADS, H)
    assert torch.equal(
        rank["transformer.layers.0.attention.query_key_value.weight"], torch.cat([query[1], key[1], value[1]])
    )
    assert rank["word_embeddings.weight"].shape == (ROWS // 4, H)
    assert rank["transformer.layers.0.mlp.dense_4h_to_h.weight"].shape == (H, H)
    assert convert(tmp_path / "four", tmp_path / "back", "--tp", "1") == 0
    back = torch.load(tmp_path / "back/126000/mp_rank_00_model_states.pt")
    assert back["iteration"] == 126000
    assert all(torch.equal(back["module"][name], tensor) for name, tensor in whole.items())
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "four"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["dialect"], shown["layout"]["tensor_parallel"]) == ("glm", 4)
    assert shown["parameters"] == sum(tensor.numel() for tensor in whole.values())
    assert convert(tmp_path / "one", tmp_path / "three", "--tp", "3") == 1
    assert "--tp 3: does not divide the 64 rows of word_embeddings.weight" in capsys.readouterr().err
    assert main(["convert", "--input", str(tmp_path / "one"), "--output", str(tmp_path / "hf"), "--to", "hf"]) == 1
    assert "is a glm checkpoint, whose files do not describe the model" in capsys.readouterr().err
