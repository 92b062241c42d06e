"""Code bases that cannot be imported here, and are trained natively instead."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.jobs.fallback import instead
from ascend_adapt.launch.request import parse

# The guide's command, every flag as printed; sizes and iterations are smaller.
GUIDE = """
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --global-batch-size 4
    --num-gpus-per-node 1 --train-iters 30 --learning-rate 0.00015 --dataset gpt_sample_dataset_text_document
    --seq-length 32 --split 949,50,1 --min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters 320000
    --lr-warmup-fraction 0.01 --weight-decay 1e-2 --optimizer adamw --clip-grad 1.0 --vocab-size 384
    --load checkpoint --save checkpoint --save-interval 10000 --log-interval 2 --checkpoint-activations
    --multihead-attention-fusion --fp16"""
ONEFLOW = ["python3", "-m", "oneflow_gpt.training", *shlex.split(GUIDE)]


@pytest.mark.parametrize(
    "argv",
    [ONEFLOW, ["--nproc", "2", "python3.9", "-u", *ONEFLOW[1:]], ["-m", *ONEFLOW[2:]]],
    ids=["python", "-u", "-m"],
)
def test_oneflow_is_taken_over_where_it_is_missing(argv):
    request, why = instead(parse(argv))
    assert (request.native, request.target, request.form) == ("oneflow", "ascend_adapt.native", "module")
    assert request.arguments == tuple(shlex.split(GUIDE))
    assert why == (
        "oneflow_gpt.training: oneflow, oneflow_gpt cannot be imported here; the native trainer uses its arguments, "
        "this code does NOT run"
    )


def test_where_it_is_there_it_is_started(tmp_path, monkeypatch):
    for name in ("oneflow", "oneflow_gpt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert instead(parse(ONEFLOW)) is None
    assert instead(parse(["python3", "train.py"])) is None


def test_others_are_taken_over_only_when_asked_and_missing(tmp_path):
    script = tmp_path / "pretrain_gpt.py"
    script.write_text(
        "import os, json\nfrom megatron.core import x\ntry:\n    import fused\nexcept ImportError:\n    pass\n"
    )
    words = ["--num-layers", "2"]
    assert instead(parse([str(script), *words])) is None
    request, why = instead(parse(["--fallback", "native", str(script), *words]))
    assert (request.native, request.arguments) == ("megatron", ("--num-layers", "2"))
    assert why.startswith(f"{script}: megatron cannot be imported here")
    (tmp_path / "megatron").mkdir()
    assert instead(parse(["--fallback", "native", str(script), *words])) is None
    deepy = tmp_path / "deepy.py"
    deepy.write_text("import no_such_launcher\n")
    request, _ = instead(parse(["--fallback", "native", str(deepy), "train.py", "-d", "configs", "20B.yml"]))
    assert (request.native, request.arguments) == ("neox", ("-d", "configs", "20B.yml"))


def test_what_nothing_takes_over(tmp_path):
    with pytest.raises(LaunchError, match=r"supports pretrain_gpt.py, deepy.py and oneflow_gpt.training, not train.py"):
        instead(parse(["--fallback", "native", "train.py"]))
    with pytest.raises(LaunchError, match=r"pretrain_gpt.py: cannot be read"):
        instead(parse(["--fallback", "native", str(tmp_path / "pretrain_gpt.py")]))


def test_the_guides_command_trains_saves_and_resumes(ascend_run, tmp_path):
    """On real text."""
    from ascend_adapt import cli

    text = [line for line in Path(__file__).read_text(encoding="utf-8").splitlines() if line.strip()] * 20
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in text))
    vocabulary(tmp_path)
    files = {"input": "text.jsonl", "output-prefix": "gpt_sample_dataset"}
    files |= {"vocab": "vocab.json", "merge-file": "merges.txt"}
    words = [word for name, file in files.items() for word in (f"--{name}", str(tmp_path / file))]
    words += ["--workers", "1", "--tokenizer-type", "GPT2BPETokenizer", "--append-eod"]
    assert cli.main(["preprocess", *words]) == 0
    done = ascend_run("--device", "cpu", *ONEFLOW, "--exit-interval", "6", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "the native trainer uses its arguments, this code does NOT run" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "checkpoint" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [2, 4, 6]
    assert sum(row["skipped"] for row in rows) > 0  # 2**32 is too large a scale to begin with
    again = ascend_run("--device", "cpu", *ONEFLOW, OMP_NUM_THREADS="1")
    assert again.returncode == 0, again.stderr
    assert "resuming from checkpoint/iter_0000006, iteration 6" in again.stdout
    rows = [json.loads(line) for line in (tmp_path / "checkpoint" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["iteration"] == 30
    assert rows[-1]["skipped"] == 0
    assert 0 < rows[-1]["lm_loss"] < 11


def vocabulary(folder):
    """Write a vocabulary of bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
