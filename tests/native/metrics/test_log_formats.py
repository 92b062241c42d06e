from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from native.configurations import config

from ascend_adapt.config.train_config import Logging, LossScale, Parallel, Precision
from ascend_adapt.native.metrics.log_formats import Interval, evaluation_lines, step_lines
from ascend_adapt.recipes.command_line import take_own_options

INTERVAL = Interval(
    iteration=100,
    consumed_samples=800,
    steps=10,
    seconds=0.65,
    samples=8,
    learning_rate=1.5e-4,
    lm_loss=5.879755,
    grad_norm=0.987,
    loss_scale=65536.0,
    skipped=1,
    nan=0,
    samples_per_s=12.308,
    tokens_per_s=12603.0,
    tflops=4.938,
    model_tflops=3.7,
    mfu=None,
)


def lines(style, interval=INTERVAL, *, first=False, dtype="fp16", **more):
    run = config(
        logging=Logging(format=style, **more),
        precision=Precision(dtype=dtype, loss_scale=LossScale()),
        iterations=5000,
        parallel=Parallel(tensor=4, stages=(2,)),
        data={"seq_length": 64},
    )
    return step_lines(run, interval, first=first)


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "megatron",
            " iteration      100/    5000 | consumed samples:          800 | elapsed time per iteration (ms): 650.0 | "
            "learning rate: 1.500E-04 | global batch size:     8 | lm loss: 5.879755E+00 | loss scale: 65536.0 | "
            "grad norm: 0.987 | number of skipped iterations:   1 | number of nan iterations:   0 |",
        ),
        (
            "bigscience",
            " iteration      100/    5000 | consumed samples:          800 | consumed tokens:        51200 | "
            "elapsed time per iteration (s): 0.65 | learning rate: 1.500E-04 | global batch size:     8 | "
            "lm loss: 5.879755E+00 | loss scale: 65536.0 | grad norm: 0.987 | number of skipped iterations:   1 | "
            "number of nan iterations:   0 | samples per second: 12.308 | TFLOPs: 4.94 |",
        ),
        (
            "deepspeed",
            " iteration      100/    5000 | consumed samples:          800 | consumed tokens:        51200 | "
            "elapsed time per iteration (ms): 650.0 | learning rate: 1.500E-04 | global batch size:     8 | "
            "lm loss: 5.879755E+00 | loss scale: 65536.0 | grad norm: 0.987 | actual seqlen:    64 | "
            "number of skipped iterations:   1 | number of nan iterations:   0 | samples per second: 12.308 | "
            "tokens per gpu per second (tgs): 3150.750 | TFLOPs: 4.94 |",
        ),
        (
            "neox",
            " samples/sec: 12.308 | iteration      100/    5000 | elapsed time per iteration (ms): 650.0 | "
            "learning rate: 1.500E-04 | approx flops per GPU: 4.9TFLOPS | lm_loss: 5.879755E+00 | "
            "loss scale: 65536.0 | number of skipped iterations:   1 | number of nan iterations:   0 |",
        ),
        (
            "glm",
            " iteration      100/    5000 | elapsed time per iteration (ms): 650.0 | learning rate 1.500E-04 | "
            "lm loss 5.879755E+00 | loss scale 65536.0 |",
        ),
        (
            "oneflow",
            "step=100,micro_batches=400,samples=800,throughput=12.30800,latency=0.65000,loss=5.87976,",
        ),
    ],
)
def test_log_lines_equal_upstreams_byte_for_byte(style, expected):
    assert lines(style) == [expected]


def test_megatron_core_line_begins_with_the_time():
    (line,) = lines("mcore")
    assert re.fullmatch(r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration      100/    5000 \| .*", line)
    assert " throughput per GPU (TFLOP/s/GPU): 4.9 | learning rate: 1.500000E-04 |" in line


def test_oneflow_table_has_one_header():
    head, rule, row = lines("oneflow", first=True, table=True)
    assert head == "| step     | micro_batches   | samples         | throughput | latency    | loss       |"
    assert rule.startswith("| -------- | --------------- |")
    assert row == "| 100      | 400             | 800             | 12.30800   | 0.65000    | 5.87976    |"
    assert len(lines("oneflow", table=True)) == 1


def test_values_that_upstream_omits():
    assert "loss scale" not in lines("bigscience", dtype="bf16")[0]
    assert "loss scale" not in lines("neox", dtype="fp32")[0]
    more = replace(INTERVAL, num_zeros=12.0, params_norm=3.5)
    assert " | num zeros: 12.0 | params norm: 3.500 | " in lines("megatron", more)[0]


def test_json_line_equals_the_row_of_metrics_jsonl():
    assert json.loads(lines("json")[0]) == INTERVAL.to_json()
    assert set(INTERVAL.to_json()) == {
        *("iteration", "consumed_samples", "lm_loss", "learning_rate", "grad_norm", "loss_scale", "skipped", "nan"),
        *("samples_per_s", "tokens_per_s", "tflops", "model_tflops", "mfu"),
    }


@pytest.mark.parametrize(
    ("style", "part", "expected"),
    [
        (
            "megatron",
            "valid",
            " validation loss at iteration 7 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ",
        ),
        (
            "bigscience",
            "valid",
            "validation loss at iteration 7 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ",
        ),
        (
            "megatron",
            "test",
            " validation loss at the end of training for test data | lm loss value: 2.000000E+00 | "
            "lm loss PPL: 7.389056E+00 | ",
        ),
        (
            "neox",
            "valid",
            " validation results at iteration 7 | lm_loss value: 2.000000E+00 | lm_loss_ppl value: 7.389056E+00 | ",
        ),
    ],
)
def test_evaluation_is_printed_between_rules(style, part, expected):
    above, line, below = evaluation_lines(config(logging=Logging(format=style)), 7, part, 2.0)
    assert line == expected
    assert above == below == "-" * (len(line) + 1)


def test_a_log_format_of_a_third_party(site):
    site.write(
        their_format="from ascend_adapt.native.metrics.log_formats import LogFormat\n"
        "theirs = LogFormat(\n"
        "    lambda config, interval, first: [f'{interval.iteration}/{config.iterations}'],\n"
        "    lambda iteration, part, loss: [f'{part} {iteration} {loss}'],\n"
        ")\n"
    )
    site.install("theirs", "1.0", "[ascend_adapt.log_formats]\ntheirs = their_format:theirs")
    assert lines("theirs") == ["100/5000"]
    assert evaluation_lines(config(logging=Logging(format="theirs")), 7, "valid", 2.0) == ["valid 7 2.0"]
    assert take_own_options(["--log-format", "theirs"])[0].log_format == "theirs"


def test_perplexity_is_capped():
    assert "lm loss PPL: 4.851652E+08" in evaluation_lines(config(), 7, "valid", 99.0)[1]  # exp(20)


@pytest.mark.parametrize("style", ["megatron", "bigscience", "deepspeed", "mcore", "neox", "glm", "oneflow"])
@pytest.mark.parametrize("table", [False, True])
def test_a_window_of_skipped_steps_prints_no_loss(style, table):
    (line,) = lines(style, replace(INTERVAL, lm_loss=None, skipped=10), table=table)
    assert not re.search(r"loss[:=]? *[0-9]", line.replace("loss scale", "")), line
    assert "0.00000" not in line
