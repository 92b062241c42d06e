"""300 steps in 16 bits beside fp32, one process on a GPU where there is one, else on the CPU.

The bounds were written down before the first run on each. ``make native-matrix``; ASCEND_ADAPT_DEVICE=cpu chooses.
"""

from __future__ import annotations

import statistics

import pytest
import torch
import torch.distributed as dist
from native.small_models import Case, train

from ascend_adapt.config.train_config import Parallel
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel import mesh as meshes

STEPS = 300
BOUNDS = {"cpu": {"bf16": 0.02, "fp16": 0.01}, "cuda": {"bf16": 0.005, "fp16": 0.005}}
"""Relative bound between the mean loss of the last 50 steps and fp32's; three times as wide for every 50 steps."""


@pytest.fixture(scope="module")
def device() -> torch.device:
    return devices.of_this_rank()


@pytest.fixture(scope="module", autouse=True)
def process_group(device):
    dist.init_process_group(devices.backend(device), store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def losses(model: str, dtype: str, device: torch.device) -> list[float]:
    """Return the mean loss of every 50 steps."""
    mesh = meshes.build(Parallel(), device)
    results = train(Case("", model, {"micro": 8}, steps=STEPS, dtype=dtype), mesh).losses
    return [statistics.fmean(results[first : first + 50]) for first in range(0, STEPS, 50)]


@pytest.mark.parametrize("model", ["gpt2", "neox"])
def test_sixteen_bits_converge_as_fp32(model, device):
    exact = losses(model, "fp32", device)
    assert exact[-1] < 0.7 * exact[0]
    for dtype, bound in BOUNDS[device.type].items():
        found = losses(model, dtype, device)
        results = [f"{one:.4f} beside {other:.4f}" for one, other in zip(found, exact, strict=True)]
        print(f"{devices.name(device)}, {model} {dtype}: {', '.join(results)}")
        assert found[-1] == pytest.approx(exact[-1], rel=bound), dtype
        assert found == pytest.approx(exact, rel=3 * bound), dtype
