"""Metrics in lines that unmodified programs printed."""

from __future__ import annotations

import math

import pytest

from ascend_adapt.report.log_lines import points

LINES = {
    "Megatron-core 0.19": (
        " [2026-11-29 09:41:02.530] iteration        2/       3 | consumed samples:            8 | elapsed time per "
        "iteration (ms): 241.3 | throughput per GPU (TFLOP/s/GPU): 12.5 | learning rate: 8.200000E-04 | global batch "
        "size:     4 | lm loss: 1.043093E+01 | loss scale: 1.0 | grad norm: 8.837 | number of skipped iterations:   0 "
        "| number of nan iterations:   0 |",
        2,
        {
            "loss": 10.43093,
            "learning_rate": 8.2e-4,
            "grad_norm": 8.837,
            "loss_scale": 1.0,
            "seconds": 0.2413,
            "samples_per_s": 4 / 0.2413,
            "tflops": 12.5,
        },
    ),
    "bigscience": (
        " iteration        2/       3 | consumed samples:            8 | consumed tokens:          256 | elapsed time "
        "per iteration (s): 0.50 | learning rate: 4.500E-05 | global batch size:     4 | lm loss: 6.925600E+00 | num "
        "zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 8.068 | "
        "TFLOPs: 0.25 |",
        2,
        {"loss": 6.9256, "learning_rate": 4.5e-5, "seconds": 0.5, "samples_per_s": 8.068, "tflops": 0.25},
    ),
    "GPT-NeoX": (
        " samples/sec: 19.645 | iteration        1/       6 | elapsed time per iteration (ms): 407.2 | learning rate: "
        "9.407E-04 | approx flops per GPU: 148.5GFLOPS | lm_loss: 6.250634E+00 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |",
        1,
        {"loss": 6.250634, "learning_rate": 9.407e-4, "seconds": 0.4072, "samples_per_s": 19.645, "tflops": 0.1485},
    ),
    "GLM": (
        " iteration        1/       5 | elapsed time per iteration (ms): 675.2 | learning rate 9.780E-04 | lm loss "
        "6.495256E+00 |",
        1,
        {"loss": 6.495256, "learning_rate": 9.78e-4, "seconds": 0.6752},
    ),
    "OneFlow": (
        "step=3,micro_batches=3,samples=48,throughput=121.10000,latency=0.13212,loss=9.51490,",
        3,
        {"loss": 9.5149, "samples_per_s": 121.1, "seconds": 0.13212},
    ),
    "DeepSpeed's pipeline": (
        "steps: 2 loss: 6.9242 iter time (s): 0.060 samples/sec: 66.490",
        2,
        {"loss": 6.9242, "seconds": 0.06, "samples_per_s": 66.49},
    ),
    "DeepSpeed's timer": (
        "[2025-01-02 15:47:38,842] [INFO] [timer.py:264:stop] epoch=0/micro_step=20/global_step=10, "
        "RunningAvgSamplesPerSec=46.98077573584925, CurrSamplesPerSec=50.86885115471782, MemAllocated=5.53GB, "
        "MaxMemAllocated=8.61GB",
        10,
        {"samples_per_s": 50.86885115471782, "memory": 8.61},
    ),
    "Hugging Face's Trainer, behind its progress bar": (
        " 25%|██▌       | 1/4 [00:00<00:02,  1.16it/s]{'loss': 6.2701, 'grad_norm': 0.38677141070365906, "
        "'learning_rate': 0.001, 'epoch': 0.12}",
        0.12,
        {"loss": 6.2701, "grad_norm": 0.38677141070365906, "learning_rate": 0.001},
    ),
    "Hugging Face's Trainer 5, an evaluation": (
        "\x1b[A{'eval_loss': '6.283', 'eval_runtime': '0.3864', 'eval_samples_per_second': '20.7', 'epoch': '0.3333'}",
        0.3333,
        {"validation": 6.283},
    ),
    "nanoGPT": (
        "iter 5: loss 4.1565, time 710.46ms, mfu 12.25%",
        5,
        {"loss": 4.1565, "seconds": 0.71046, "mfu": 12.25},
    ),
    "nanoGPT before its first MFU": ("iter 0: loss 4.2, time 100.00ms, mfu -100.00%", 0, {"loss": 4.2, "seconds": 0.1}),
    "llama2.c": (
        "3 | loss 6.1293 | lr 4.522542e-04 | 51.77ms | mfu 0.00%",
        3,
        {"loss": 6.1293, "learning_rate": 4.522542e-4, "mfu": 0.0},
    ),
    "torchtitan": (
        "\x1b[32mstep: 10  loss:  7.4012  grad_norm:  1.25  memory: 12.50GiB(13.00%)  tps: 1,234  "
        "tflops: 12.3  mfu: 4.5%",
        10,
        {
            "loss": 7.4012,
            "grad_norm": 1.25,
            "memory": 12.5 * 2**30 / 1e9,
            "tokens_per_s": 1234.0,
            "tflops": 12.3,
            "mfu": 4.5,
        },
    ),
    "JSON": (
        '{"iteration": 2, "lm_loss": 6.4, "learning_rate": 0.0007, "loss_scale": 1.0}',
        2,
        {"loss": 6.4, "learning_rate": 0.0007, "loss_scale": 1.0},
    ),
    "a validation of Megatron-core": (
        " validation loss at iteration 3 | lm loss value: 6.949335E+00 | lm loss PPL: 1.042456E+03 | ",
        3,
        {"validation": 6.949335},
    ),
    "a validation of GPT-NeoX": (
        " validation results at iteration 6 | lm_loss value: 6.207441E+00 | lm_loss_ppl value: 4.964294E+02 | ",
        6,
        {"validation": 6.207441},
    ),
    "a validation of GLM": (
        " validation loss at iteration 5 | LM loss: 6.375509E+00 | LM PPL: 5.871000E+02",
        5,
        {"validation": 6.375509},
    ),
    "Megatron's memory": (
        "[Rank 1] (after 2 iterations) memory (MB) | allocated: 1000.0 | max allocated: 2048.0 | reserved: 3000.0 | "
        "max reserved: 3000.0",
        2,
        {"memory": 2**31 / 1e9},
    ),
}


@pytest.mark.parametrize("program", LINES)
def test_a_line_gives_its_metrics(program):
    line, x, values = LINES[program]
    found = points(line)
    assert {one.metric.name: one.y for one in found} == pytest.approx(values)
    assert {one.x for one in found} == {x}
    assert {one.axis for one in found} == {"epoch" if "Trainer" in program else "iteration"}


@pytest.mark.parametrize(
    "line",
    [
        "loading step 3 of the lossy checkpoint",
        "iteration 3: saving checkpoint, no loss was found",
        " validation loss at the end of training for test data | lm loss value: 6.2E+00 | lm loss PPL: 5E+02 | ",
        " validation loss at iteration 3 on test set | lm loss value: 9.484632E+00 | lm loss PPL: 1.3E+04 | ",
        "{'train_runtime': 3.2, 'train_samples_per_second': 10.0, 'train_loss': 6.2, 'epoch': 1.0}",
        "{'loss': __import__('os').system('true'), 'epoch': 1}",
        '{"iteration": ' + "[" * 3000,
        "step 1 loss " + "9" * 5000,
    ],
)
def test_other_lines_give_none(line):
    assert points(line) == []


@pytest.mark.parametrize(
    "line", ["iter 5: loss nan, time 7ms", "{'loss': nan, 'epoch': 5}", '{"step": 5, "loss": NaN}']
)
def test_nan_is_a_value(line):
    (loss,) = [one for one in points(line) if one.metric.name == "loss"]
    assert math.isnan(loss.y)
    assert loss.x == 5


def test_an_estimate_of_the_training_loss_is_another_curve():
    found = points("step 6: train loss 4.1188, val loss 4.1398")
    assert [(one.metric.name, one.variant) for one in found] == [("loss", "at evaluations"), ("validation", "")]


def test_each_validation_set_is_its_own_curve():
    (one,) = points(" validation loss at iteration 3 on 4-sample draw from validation set | lm loss value: 6.9E+00 | ")
    assert one.variant == "4-sample draw from validation set"
