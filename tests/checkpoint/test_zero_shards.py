"""Checkpoints that DeepSpeed saved with ZeRO on two ranks, beside the master weights that its engine gave."""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects.deepspeed_files import load_weights, rank_files, step_folder
from ascend_adapt.checkpoint.source import Given
from ascend_adapt.cli import main
from ascend_adapt.errors import CheckpointError

pytest.importorskip("transformers")
pytest.importorskip("deepspeed")
CASES = ("1:bf16", "2:fp16", "2:bf16:frozen", "3:fp16", "3:bf16:frozen")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder with a checkpoint for each case."""
    folder = tmp_path_factory.mktemp("zero")
    script = str(Path(__file__).with_name("save_by_deepspeed.py"))
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--nproc", "2", "--device", "cpu"]
    command += ["--log-dir", str(folder / "run"), script, str(folder), *CASES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def weights_of(path, *, master=True):
    return load_weights(rank_files(step_folder(path))[0], master=master)


@pytest.mark.parametrize("case", CASES)
def test_master_weights_are_the_engines(saved, case):
    path = saved / case.replace(":", "-")
    expected, found = torch.load(path / "master.pt"), weights_of(path)
    assert {name for name in expected if not torch.equal(found[name], expected[name])} == set()
    source = open_checkpoint(path, Given(master_weights=True))
    assert (source.dialect, source.dtype) == ("deepspeed", torch.float32)
    assert torch.equal(source.read("final_norm.weight"), expected["transformer.ln_f.weight"])
    # Without ZeRO-3 the weights are there in 16 bits too, and those are read by default.
    plain = open_checkpoint(path)
    assert plain.dtype == (torch.float32 if case.startswith("3") else {"b": torch.bfloat16}.get(case[2], torch.float16))
    assert torch.equal(plain.read("final_norm.weight"), expected["transformer.ln_f.weight"].to(plain.dtype))


@pytest.mark.parametrize("case", ["1:bf16", "3:fp16"])
def test_a_universal_checkpoint_has_the_master_weights(saved, case):
    """As DeepSpeed's own tool makes it, of stages 1 and 2 with shapes, of stage 3 flat."""
    from deepspeed.checkpoint import ds_to_universal

    path = saved / case.replace(":", "-")
    universal = path / "global_step1_universal"
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    words = Namespace(input_folder=str(path / "global_step1"), output_folder=str(universal), **options)
    ds_to_universal.main(Namespace(**vars(words), inject_missing_state=True))
    source, expected = open_checkpoint(universal), torch.load(path / "master.pt")
    assert source.layout["form"] == "universal"
    assert torch.equal(source.read("embedding.words.weight"), expected["transformer.wte.weight"])
    assert torch.equal(source.read("layers.1.mlp.dense_h_to_4h.weight"), expected["transformer.h.1.mlp.c_fc.weight"].T)


def test_convert_reads_master_weights(saved, tmp_path, capsys):
    words = ["convert", "--input", str(saved / "2-fp16"), "--output", str(tmp_path / "hf"), "--to", "hf"]
    assert main([*words, "--master-weights"]) == 0
    assert "verified: largest relative difference of logits" in capsys.readouterr().out
    expected = torch.load(saved / "2-fp16/master.pt")["transformer.ln_f.weight"]
    assert torch.equal(open_checkpoint(tmp_path / "hf").read("final_norm.weight"), expected)
    assert main(["inspect", str(saved / "2-fp16")]) == 0


def test_missing_shards_are_named(saved, tmp_path):
    shutil.copytree(saved / "1-bf16", tmp_path / "part")
    first, second = sorted(tmp_path.glob("part/global_step1/*zero_pp_rank_*"))
    second.unlink()
    with pytest.raises(CheckpointError, match="has 1 ZeRO shards of rank 00, expected 2, one for each data-parallel"):
        open_checkpoint(tmp_path / "part", Given(master_weights=True))
    first.unlink()
    with pytest.raises(CheckpointError, match="has no ZeRO shards of rank 00, .* — omit --master-weights"):
        open_checkpoint(tmp_path / "part", Given(master_weights=True))
    (tmp_path / "part/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json next to it, .* — pass it with --config"):
        open_checkpoint(tmp_path / "part")
    source = open_checkpoint(tmp_path / "part", Given([saved / "1-bf16/config.json"]))
    assert source.model.num_layers == 2
