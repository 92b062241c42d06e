"""The DeepSpeed plugin on the installed DeepSpeed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import ascend_adapt
from ascend_adapt_plugins.deepspeed_runtime.jit_builds import TorchFusedAdam


def run(code, tmp_path, **env):
    """Run Python code in a fresh process whose extension builds would go to ``tmp_path``."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_nothing_is_compiled_and_everything_is_restored(tmp_path):
    code = """
import ascend_adapt
status = ascend_adapt.enable(strict=True)
assert {status[name].state for name in ("no_shared_memory_build", "fused_adam_in_torch")} == {"armed"}
import sys
assert "torch" not in sys.modules and "deepspeed" not in sys.modules
import torch, deepspeed
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.op_builder.cpu.fused_adam import FusedAdamBuilder
comm = sys.modules["deepspeed.comm.torch"]  # the package attribute of that name is torch itself
assert comm.build_shm_op() is None
parameter = torch.nn.Parameter(torch.tensor([1.0]))
optimizer = FusedAdam([parameter], lr=0.1)
parameter.grad = torch.tensor([0.5])
optimizer.step()
assert abs(parameter.item() - 0.9) < 1e-6, parameter
status = ascend_adapt.status()
assert {status[name].state for name in ("no_shared_memory_build", "fused_adam_in_torch")} == {"applied"}, status
ascend_adapt.disable()
assert "load" not in vars(FusedAdamBuilder)
assert not hasattr(comm.build_shm_op, "__wrapped__")
"""
    job = run(code, tmp_path)
    assert job.returncode == 0, job.stderr
    assert not any(tmp_path.rglob("*.ninja")), list(tmp_path.rglob("*"))


def test_on_another_device_the_cpu_patches_are_skipped():
    with ascend_adapt.enabled(device="cuda") as status:
        outcome = status["no_shared_memory_build"]
        assert (outcome.state, outcome.reason) == ("skipped", "is for cpu, this process runs on cuda")


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_arithmetic_is_adams(adam_w_mode, dtype):
    """Against torch's own Adam and AdamW in fp32, ten steps with weight decay."""
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(7, 3, generator=generator).to(dtype), torch.randn(5, generator=generator).to(dtype)]
    firsts, seconds = [torch.zeros_like(p) for p in ours], [torch.zeros_like(p) for p in ours]
    theirs = [torch.nn.Parameter(p.float()) for p in ours]
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    optimizer = kind(theirs, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(1, 11):
        grads = [torch.randn(p.shape, generator=generator).to(dtype) for p in ours]
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad.float()
        optimizer.step()
        lists = [grads, ours, firsts, seconds]
        TorchFusedAdam.multi_tensor_adam(65536, None, lists, 0.01, 0.9, 0.95, 1e-8, step, int(adam_w_mode), 1, 0.1)
    tolerance = {torch.float32: 1e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), their.detach(), rtol=tolerance, atol=tolerance)


def test_without_bias_correction():
    parameter, first, second = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    lists = [[torch.tensor([0.5])], [parameter], [first], [second]]
    TorchFusedAdam.multi_tensor_adam(1, None, lists, 0.1, 0.9, 0.999, 0.0, 1, 1, 0, 0.0)
    torch.testing.assert_close(first, torch.tensor([0.05]))
    torch.testing.assert_close(second, torch.tensor([0.00025]))
    torch.testing.assert_close(parameter, torch.tensor([1.0 - 0.1 * 0.05 / 0.00025**0.5]))
