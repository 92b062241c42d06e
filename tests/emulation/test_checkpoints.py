"""Checkpoints that an NPU wrote, read on a CPU without torch_npu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import megatron


def test_what_an_npu_wrote_is_read_without_torch_npu(emulated, tmp_path):
    """Today's torch_npu, that for torch 1.11, and the format before torch 1.6."""
    model, kinds = MODELS["gpt2"], ("new", "old", "legacy")
    state = state_of(model)
    for kind in kinds:
        megatron.write(output_of(model, state), new_folder(tmp_path / kind))
    files = [tmp_path / kind / "release/mp_rank_00/model_optim_rng.pt" for kind in kinds]
    script = str(Path(__file__).parent / "jobs" / "save_on_npu.py")
    subprocess.run([sys.executable, script, *map(str, files)], env=emulated(), check=True, timeout=120)
    assert "torch_npu" not in sys.modules
    for kind, file in zip(kinds, files, strict=True):
        content = file.read_bytes()
        assert b"npu:0" in content
        assert (b"_rebuild_npu_tensor" in content) == (kind != "new")
        source = open_checkpoint(tmp_path / kind)
        assert [name for name, tensor in state.items() if not torch.equal(source.read(name), tensor)] == []
