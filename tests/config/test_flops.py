from __future__ import annotations

import pytest
from native.configurations import config

from ascend_adapt.config.flops import dialect_flops, model_flops, peak_flops
from ascend_adapt.config.memory_estimate import total_parameters
from ascend_adapt.config.train_config import Logging, Model, Parallel

GPT2_MEDIUM = Model(50257, 50304, 1024, 24, 16, 16, 64, 4096, 2048)


def run(recompute="none", model=GPT2_MEDIUM, seq_length=2048, flops="paper", **parallel):
    return config(
        model=model,
        parallel=Parallel(stages=(24,), recompute=recompute, **parallel),
        batch={"total": 2 * parallel.get("data", 1)},
        data={"seq_length": seq_length},
        logging=Logging(flops=flops),
    )


def test_flops_1():
    assert dialect_flops(run(), 1) == pytest.approx(5.422530e12, rel=1e-6)
    assert dialect_flops(run("full"), 1) == pytest.approx(7.230041e12, rel=1e-6)
    assert model_flops(run("full"), 1) == pytest.approx(5.580773e12, rel=1e-6)


def test_flops_1_is_what_the_megatron_deepspeed_guide_logged():
    model = Model(50257, 50688, 1024, 24, 16, 16, 64, 4096, 1024)
    a_second = dialect_flops(run("full", model, 1024, tensor=4), 1) * 6.159 / 4
    assert round(a_second / 1e12, 2) == 4.94  # the guide's log: 6.159 samples a second on 4 GPUs, 4.94 TFLOPs


def test_mcore_counts_no_recomputation():
    assert dialect_flops(run("full", flops="mcore"), 3) == model_flops(run(), 3)


def test_neox_v2_counts_attention_five_times_over():
    counted = dialect_flops(run(flops="neox-v2"), 1)
    assert counted == 2048 * (6 * total_parameters(GPT2_MEDIUM) + 60 * 2048 * 1024 * 24)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("Ascend910B3", None),
        ("cpu", None),
    ],
)
def test_a_peak_is_known_or_not(name, peak):
    assert peak_flops(name) == peak
