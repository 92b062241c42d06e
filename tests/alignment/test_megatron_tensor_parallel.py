"""Unmodified Megatron-core on one rank beside two tensor-parallel ranks: they agree, and a fault is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ascend_adapt.alignment import kept_inputs
from ascend_adapt.testing.releases import Releases, ReleaseUnreachable

HERE = Path(__file__).parent
KEPT = "decoder.layers.1.mlp.linear_fc2"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a function that records two steps, once for each number of ranks and fault."""
    try:
        release = Releases(HERE.parents[1] / ".releases").tree("megatron-core", "0.19.2")
    except ReleaseUnreachable as error:
        pytest.skip(str(error))
    home = tmp_path_factory.mktemp("megatron")

    def record(ranks: int, fault: str = "none") -> Path:
        folder = home / f"{ranks} {fault}"
        if not folder.exists():
            options = ["--device", "cpu", "--nproc", str(ranks), "--log-dir", f"{folder} run", "--record", str(folder)]
            options += ["--record-steps", "1-2", "--record-inputs", KEPT]
            words = [str(HERE / "megatron_layers.py"), str(ranks), fault]
            variables = {"PYTHONPATH": str(release), "CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "ascend_adapt.launch.cli", *options, *words]
            ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        return folder

    return record


@pytest.mark.parametrize("form", ["none", pytest.param("sequence parallel", marks=pytest.mark.every_case)])
def test_one_rank_agrees_with_two(form, recorded, compared):
    """Gated layers have a stride, key heads are shared; the optimizer's states are shards too."""
    report = compared(recorded(1), recorded(2, form))
    assert report.first is None, report.first
    assert report.steps == [1, 2]
    assert {"forward", "backward", "gradients", "optimizer"} <= report.largest.keys()


@pytest.mark.parametrize(
    ("fault", "phase", "module"),
    [
        pytest.param("skipped reduce", "forward", KEPT, marks=pytest.mark.every_case),
        ("wrong shard", "weights", "decoder.layers.0.self_attention.linear_qkv"),
        ("skipped gradient reduce", "backward", "decoder.layers.1.self_attention.linear_qkv"),
    ],
)
def test_a_fault_of_two_ranks_is_named(fault, phase, module, recorded, compared):
    found = compared(recorded(1), recorded(2, fault)).first
    assert (found.step, found.phase, found.module) == (1, phase, module)


def test_the_kept_shards_replay_what_one_rank_computed(recorded):
    whole = kept_inputs.load(recorded(1) / "rank-0", KEPT)
    shards = [kept_inputs.load(recorded(2) / f"rank-{rank}", KEPT) for rank in range(2)]
    partial = sum(one["args"][0] @ one["state"]["weight"].t() for one in shards)
    torch.testing.assert_close(partial, whole["output"][0])
