from __future__ import annotations

import errno
import io
import json
import os

import pytest
from native.configurations import config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ascend_adapt.config.train_config import Logging
from ascend_adapt.native.metrics import run_log
from ascend_adapt.native.metrics.run_log import RunLog
from ascend_adapt.native.metrics.step_metrics import StepMetrics


def step(iteration, loss=2.0, **values):
    return StepMetrics(
        **{
            "iteration": iteration,
            "consumed_samples": 2 * iteration,
            "samples": 2,
            "tokens": 64,
            "lm_loss": loss,
            "learning_rate": 1e-3,
            "grad_norm": 1.0,
            "loss_scale": 1.0,
            "skipped": False,
            "nan": False,
            "seconds": 0.5,
            **values,
        }
    )


def log_run(folder, steps, *, rank=0, device_name="", **logging):
    output = io.StringIO()
    log = RunLog(config(logging={"interval": 2, **logging}), folder, rank=rank, device_name=device_name, output=output)
    for one in steps:
        log.step(one)
    log.evaluation(steps[-1].iteration, "valid", 3.0)
    log.close()
    return output.getvalue()


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_means_are_over_the_steps_of_the_interval_that_were_not_skipped(tmp_path):
    printed = log_run(tmp_path, [step(1, 4.0), step(2, 2.0), step(3, 9.0, skipped=True), step(4, 1.0)])
    assert printed.count("iteration        ") == 2
    first, second = rows(tmp_path / "metrics.jsonl")
    assert (first["lm_loss"], first["skipped"], second["lm_loss"], second["skipped"]) == (3.0, 0, 1.0, 1)
    # 4 samples of 32 tokens in 1 second.
    assert (first["samples_per_s"], first["tokens_per_s"], first["consumed_samples"]) == (4.0, 128.0, 4)
    assert rows(tmp_path / "evaluations.jsonl") == [{"iteration": 4, "part": "valid", "lm_loss": 3.0}]


def test_resumed_run_replaces_the_rows_after_its_checkpoint(tmp_path):
    log_run(tmp_path, [step(number) for number in range(1, 9)])
    log_run(tmp_path, [step(5, 1.0), step(6, 1.0)])
    found = rows(tmp_path / "metrics.jsonl")
    assert [(row["iteration"], row["lm_loss"]) for row in found] == [(2, 2.0), (4, 2.0), (6, 1.0)]
    assert [row["iteration"] for row in rows(tmp_path / "evaluations.jsonl")] == [6]


def test_restarting_a_finished_run_keeps_all_rows(tmp_path):
    log_run(tmp_path, [step(number) for number in range(1, 9)])
    for _ in range(2):
        log = RunLog(config(), tmp_path, rank=0, output=io.StringIO())
        log.evaluation(8, "test", 4.0)
        log.close()
    assert [row["iteration"] for row in rows(tmp_path / "metrics.jsonl")] == [2, 4, 6, 8]
    assert rows(tmp_path / "evaluations.jsonl") == [
        {"iteration": 8, "part": "valid", "lm_loss": 3.0},
        {"iteration": 8, "part": "test", "lm_loss": 4.0},
    ]


@pytest.mark.parametrize("lost", [1, 20])
def test_truncated_row_is_written_again(tmp_path, lost):
    log_run(tmp_path, [step(number) for number in range(1, 5)])
    for path in tmp_path.glob("*.jsonl"):
        os.truncate(path, max(path.stat().st_size - lost, 0))
    log_run(tmp_path, [step(5, 1.0), step(6, 1.0)])
    assert [row["iteration"] for row in rows(tmp_path / "metrics.jsonl")] == ([2, 4, 6] if lost == 1 else [2, 6])
    assert [row["iteration"] for row in rows(tmp_path / "evaluations.jsonl")] == ([4, 6] if lost == 1 else [6])


class Full:
    """A disk without room, for a while."""

    def __init__(self, stream):
        self.stream, self.is_full = stream, True

    def write(self, text):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.stream.write(text)

    def close(self):
        self.stream.close()


def test_full_disk_does_not_end_the_run(tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    output = io.StringIO()
    log = RunLog(config(logging={"interval": 1}), tmp_path, rank=0, output=output)
    log.step(step(1))
    disk = log._files["metrics"] = Full(log._files["metrics"])
    log._scalars["tensorboard"] = full
    for number in (2, 3):
        log.step(step(number))
    disk.is_full = False
    log.step(step(4))
    log.close()
    warnings = [line for line in output.getvalue().splitlines() if line.startswith("warning")]
    why = "OSError: [Errno 28] No space left on device — the run continues without it"
    last = "warning: incomplete: metrics.jsonl, tensorboard, see the warnings above"
    assert sorted(warnings) == [last, f"warning: metrics.jsonl: {why}", f"warning: tensorboard: {why}"]
    assert warnings[-1] == last
    assert [row["iteration"] for row in rows(tmp_path / "metrics.jsonl")] == [1, 4]


def test_only_rank_0_logs(tmp_path):
    assert log_run(tmp_path / "run", [step(1), step(2)], rank=1) == ""
    assert not (tmp_path / "run").exists()


def test_nan_and_inf_are_null_in_json(tmp_path):
    log_run(tmp_path, [step(1, float("nan"), nan=True), step(2, float("inf"), grad_norm=float("inf"))])
    (row,) = rows(tmp_path / "metrics.jsonl")
    assert (row["lm_loss"], row["grad_norm"], row["nan"]) == (None, None, 1)


def test_interval_of_skipped_steps_only(tmp_path):
    printed = log_run(tmp_path, [step(1, skipped=True), step(2, skipped=True)])
    assert "lm loss:" not in printed
    assert rows(tmp_path / "metrics.jsonl")[0]["lm_loss"] is None


def test_mfu_if_the_peak_of_the_device_is_known(tmp_path):
    log_run(tmp_path, [step(1), step(2)], device_name="NVIDIA A100-SXM4-40GB")
    (row,) = rows(tmp_path / "metrics.jsonl")
    assert row["mfu"] == pytest.approx(row["model_tflops"] / 312)


@pytest.mark.parametrize("asked", [None, "elsewhere"])
def test_tensorboard(tmp_path, asked):
    folder = tmp_path / (asked or "run/tensorboard")
    log_run(tmp_path / "run", [step(1, 4.0), step(2, 2.0)], tensorboard=str(folder) if asked else None)
    events = EventAccumulator(str(folder)).Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/lm_loss")] == [(1, 4.0), (2, 2.0)]
    assert [one.value for one in events.Scalars("valid/lm_loss")] == [3.0]
    assert events.Scalars("runtime/samples_per_s")[0].value == 4.0


def test_requested_but_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(run_log, "find_spec", lambda name: None)
    printed = log_run(tmp_path, [step(1), step(2)], tensorboard="t", wandb_project="p")
    assert "tensorboard: nothing is written to t, because tensorboard is not installed" in printed
    assert "wandb: nothing is logged to p, because wandb is not installed" in printed


def test_wandb_gets_the_same_values(tmp_path, monkeypatch):
    """wandb needs an account: a stand-in for its module keeps the logged values."""
    kept = []

    class Run:
        def log(self, values, step):
            kept.append((step, values))

        def finish(self):
            kept.append("finished")

    class Wandb:
        @staticmethod
        def init(**named):
            kept.append({name: named[name] for name in ("project", "name", "group", "entity")})
            return Run()

    real = run_log.import_module
    monkeypatch.setattr(run_log, "import_module", lambda name: Wandb if name == "wandb" else real(name))
    monkeypatch.setattr(run_log, "find_spec", lambda name: name == "wandb")
    logging = Logging(interval=2, wandb_project="p", wandb_name="n")
    log = RunLog(config(logging=logging), tmp_path, rank=0, output=io.StringIO())
    log.step(step(1))
    log.close()
    assert kept[0] == {"project": "p", "name": "n", "group": None, "entity": None}
    assert (1, {"train/lm_loss": 2.0}) in kept
    assert kept[-1] == "finished"


def test_peak_memory_is_logged_where_the_device_has_its_own(tmp_path):
    log_run(tmp_path / "npu", [step(1), step(2, peak_memory_bytes=8904704)])
    log_run(tmp_path / "cpu", [step(1), step(2)])
    assert rows(tmp_path / "npu" / "metrics.jsonl")[0]["peak_memory_bytes"] == 8904704
    assert "peak_memory_bytes" not in rows(tmp_path / "cpu" / "metrics.jsonl")[0]
