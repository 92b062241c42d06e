"""Changed copies of jobs' configurations: YAML, JSON and options; the originals stay as they were."""

from __future__ import annotations

import json

import pytest
import yaml

from ascend_adapt.errors import ConfigError, LaunchError
from ascend_adapt.launch import request as requests
from ascend_adapt.launch.fit import configuration, search
from ascend_adapt.launch.fit.setting import Setting

NEOX = """\
# a comment that is kept
{
  "pipe_parallel_size": 0, # of stages
  "model-parallel-size": 2,
  "zero_optimization": {
    "stage": 1,
    "reduce_scatter": True,
  },
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "checkpoint_activations": false,
}
"""
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 0},
}
MODEL = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --train-iters 3 --vocab-size 100"


def job_of(*words, nproc=4):
    argv = ["--device", "npu-emulated", "--full-size", "--fit", *words]
    return configuration.of(requests.parse(argv), requests.trial_of(argv)[1], nproc)


@pytest.fixture
def neox(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "20B.yml").write_text(NEOX)
    (tmp_path / "deepy.py").touch()
    return job_of("deepy.py", "train.py", "-d", "configs", "20B")


def test_neox_is_read_from_its_yaml(neox):
    assert neox.given == Setting(recompute=False, micro=4, zero=1, sequence=False)
    assert (neox.tensor, neox.pipeline, neox.data, neox.accumulation) == (2, 1, 2, 8)
    choices, _ = neox.choices()
    assert choices == {"sequence": [True], "zero": [2, 3], "micro": [2, 1], "recompute": [True]}


def test_neoxs_yaml_is_changed_in_a_copy_with_its_comments(neox, tmp_path):
    words, differences = neox.write(Setting(True, 2, 2, True), tmp_path / "copy")
    assert words == ["deepy.py", "train.py", "-d", str(tmp_path / "copy"), "20B"]
    assert (tmp_path / "configs" / "20B.yml").read_text() == NEOX
    text = (tmp_path / "copy" / "20B.yml").read_text()
    assert "# a comment that is kept" in text
    assert "# of stages" in text
    changed = yaml.safe_load(text)
    assert changed["zero_optimization"] == {"stage": 2, "reduce_scatter": True}
    assert (changed["train_micro_batch_size_per_gpu"], changed["gradient_accumulation_steps"]) == (2, 16)
    assert changed["checkpoint_activations"] is changed["sequence_parallel"] is True
    assert '-  "train_micro_batch_size_per_gpu": 4,' in differences
    assert '+  "train_micro_batch_size_per_gpu": 2,' in differences


def test_a_trial_has_as_few_micro_batches_as_show_the_memory(neox, tmp_path):
    neox.write(neox.given, tmp_path / "copy", accumulation=2)
    assert yaml.safe_load((tmp_path / "copy" / "20B.yml").read_text())["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(("stages", "shown"), [(1, "1 pipeline stage"), (2, "2 pipeline stages")])
def test_a_pipeline_has_no_zero_stage_above_1(stages, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "20B.yml").write_text(NEOX.replace('"pipe_parallel_size": 0', f'"pipe_parallel_size": {stages}'))
    choices, why_not = job_of("deepy.py", "train.py", "20B.yml", nproc=4 * stages).choices()
    assert "zero" not in choices
    assert f"ZeRO stage: 2 data-parallel ranks, {shown}: no stage above 1" in why_not


def test_deepspeeds_json_keeps_the_samples_of_a_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED, indent=4))
    job = job_of("train.py", "--deepspeed_config=ds.json")
    words, _ = job.write(Setting(False, 4, 3, False), tmp_path / "copy")
    assert words == ["train.py", f"--deepspeed_config={tmp_path / 'copy' / 'ds.json'}"]
    changed = json.loads((tmp_path / "copy" / "ds.json").read_text())
    assert changed == DEEPSPEED | {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3},
    }
    assert any("recomputation" in line for line in job.choices()[1])  # DeepSpeed's JSON does not switch it on


def test_hugging_faces_options_beside_a_json_with_auto(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    automatic = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(automatic))
    job = job_of("run_clm.py", "--deepspeed", "ds.json", "--per_device_train_batch_size", "8")
    assert job.given == Setting(False, 8, 2, False)
    words, _ = job.write(Setting(True, 4, 3, False), tmp_path / "copy")
    assert words[:2] == ["run_clm.py", "--deepspeed"]
    assert words[4:] == ["4", "--gradient-accumulation-steps", "2", "--gradient-checkpointing", "True"]
    changed = json.loads((tmp_path / "copy" / "ds.json").read_text())
    assert changed == automatic | {"zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("dialect", "words", "setting", "options"),
    [
        (
            "megatron",
            "--micro-batch-size 4 --global-batch-size 16 --bf16 --tensor-model-parallel-size 2 --lr 1e-4 "
            "--data-path text --max-position-embeddings 32 --eval-iters 0",
            Setting(True, 2, 1, True),
            "--micro-batch-size 2 --global-batch-size 16 --use-distributed-optimizer --recompute-granularity full "
            "--recompute-method uniform --recompute-num-layers 1 --sequence-parallel",
        ),
        (
            "oneflow",
            "--micro-batch-size 4 --num-accumulation-steps 2 --learning-rate 1e-4 --dataset text --lr-decay-iters 3 "
            "--lr-decay-style cosine",
            Setting(True, 2, 0, False),
            "--micro-batch-size 2 --num-accumulation-steps 4 --checkpoint-activations",
        ),
    ],
)
def test_the_native_trainer_reads_the_changed_options(dialect, words, setting, options, tmp_path):
    job = job_of("--native", dialect, *f"{MODEL} {words}".split())
    _, differences = job.write(setting, tmp_path)
    assert differences == [f"options: {options}"]


def test_a_file_that_is_nested_too_deeply_is_no_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="ds.json: "):
        job_of("train.py", "--deepspeed_config", "ds.json")


def test_a_job_whose_options_are_in_its_script_is_refused_with_what_to_change():
    argv = ["--device", "npu-emulated", "--full-size", "--fit", "bash", "pretrain.sh"]
    with pytest.raises(LaunchError, match=r"change these yourself: recomputation: .*; micro batch: .*; ZeRO stage: "):
        search.run(requests.parse(argv), *requests.trial_of(argv), {})
