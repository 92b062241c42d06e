"""Finetuning of GLM: every mesh as one process, the best weights, GLM's own files, and what is wrong with tasks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native import glm_cases
from native.training_bounds import apart

from ascend_adapt import cli
from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.errors import ConfigError, DataError, TrainingError
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.finetuning import metrics, objective
from ascend_adapt.native.finetuning.patterns import Copa, Rte
from ascend_adapt.native.samples.cloze_examples import check_examples, read_examples
from ascend_adapt.native.samples.glm_text import load_vocabulary

GROWTH = 16.0
"""Of a few steps on losses that are differences of scores: those of tests/native/conftest.py for norms."""
MESHES = {"tensor": {"tensor": 2}, "pipeline": {"pipeline": 2}, "zero-1": {"data": 2, "zero_stage": 1}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The logs of one process, by task, and where they were written."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, {
        task: glm_cases.finetune(glm_cases.finetuning(folder, task), folder / task) for task in ("copa", "rte")
    }


# Without "rte zero-1": its examples do not divide by the ranks, so that the first is there twice.
TASKS, MORE_TASKS = ("copa tensor", "rte pipeline", "copa zero-1"), ("rte tensor", "copa pipeline")


@pytest.mark.parametrize(
    "names", [TASKS, pytest.param(MORE_TASKS, marks=pytest.mark.every_case)], ids=["representative", "others"]
)
def test_every_mesh_as_one_process(alone, tmp_path, names):
    tasks = {name: [name.split()[0], MESHES[name.split()[1]]] for name in names}
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--nproc", "2", "--device", "cpu"]
    command += ["--log-dir", str(tmp_path / "log"), str(Path(__file__).with_name("finetune_glm.py")), str(tmp_path)]
    ended = subprocess.run(
        [*command, json.dumps(tasks)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    bound = apart(glm_cases.model(glm_cases.vocabulary(tmp_path)), 2 * glm_cases.LENGTH, GROWTH)
    for name, found in first.items():
        log = alone[1][name.split()[0]]
        # Losses near 0 are small differences of scores.
        assert found["losses"] == pytest.approx(log.losses, rel=bound, abs=bound), name
        assert found["lines"] == [line for line in log.lines if "|epoch" in line], name


def test_the_best_weights_are_kept_and_tested(alone):
    folder, logs = alone
    lines = logs["copa"].lines
    best = json.loads((folder / "saved" / "copa" / "best" / "best.json").read_text())
    assert any(line.startswith(f"best accuracy {best['score']:.4f} at iteration {best['iteration']}") for line in lines)
    scores = [float(line.rpartition(" ")[2]) for line in lines if "|epoch: -1|" not in line and "|epoch" in line]
    assert len(scores) == 3
    assert round(best["score"], 4) == max(scores)
    assert json.loads((folder / "copa" / "test_results.json").read_text()) == {
        "accuracy": best["score"],
        "type": "test",
    }
    predictions = [json.loads(line) for line in (folder / "copa" / "copa-test.jsonl").read_text().splitlines()]
    assert [one["idx"] for one in predictions] == [0, 1, 2]
    assert {one["label"] for one in predictions} <= {0, 1}


def test_weights_in_glms_layout(alone, tmp_path, capsys):
    """To two model-parallel ranks, and from them into one; position tables grow, and another model is refused."""
    settings, best = glm_cases.finetuning(tmp_path), alone[0] / "saved" / "copa" / "best"
    saved = open_checkpoint(best)
    into = ["--output", str(tmp_path / "glm"), "--to", "glm", "--tp", "2"]
    assert cli.main(["convert", "--input", str(best), *into]) == 0
    other = ["--output", str(tmp_path / "megatron"), "--to", "megatron"]
    assert cli.main(["convert", "--input", str(best), *other]) == 1
    assert "has block positions, which megatron cannot express" in capsys.readouterr().err
    files = sorted((tmp_path / "glm").glob("*/mp_rank_*_model_states.pt"))
    assert len(files) == 2
    # A rank has the queries of its heads first; here they are grouped by heads.
    name, dim = "layers.0.attention.query_key_value.weight", settings.model.head_dim
    fused = torch.load(files[0], weights_only=True)["module"][f"transformer.{name}"]
    assert torch.equal(fused[dim : 2 * dim], saved.read(name)[3 * dim : 4 * dim])

    def loaded(**changes):
        checkpoint = dataclasses.replace(settings.checkpoint, load=str(tmp_path / "glm"), finetune=True)
        model = dataclasses.replace(settings.model, **changes)
        made = glm_cases.trainer(dataclasses.replace(settings, checkpoint=checkpoint, model=model))
        return made, load(made)[1]

    same, lines = loaded()
    assert lines[0].endswith("glm, from iteration 0")
    for one in same.parameters:
        assert torch.equal(one.local, saved.read(one.name)), one.name
    rows = settings.model.max_positions
    longer, _ = loaded(max_positions=rows + 8)
    fresh = glm_cases.trainer(longer.config)
    for table in ("positions", "block_positions"):
        grown, new = (getattr(one.decoders[0].embedding, table).weight for one in (longer, fresh))
        assert torch.equal(grown[:rows], saved.read(f"embedding.{table}.weight"))
        assert torch.equal(grown[rows:], new[rows:])
    with pytest.raises(
        TrainingError, match=r"layers\.0\.mlp\.dense_h_to_4h\.weight is \[128, 32\], expected \[64, 32\]"
    ):
        loaded(ffn_hidden_size=64)


def test_losses_are_those_of_their_names():
    scores, answers = torch.tensor([[2.0, -1.0], [0.5, 0.25]]), torch.tensor([0, 1])
    assert objective.hinge(scores, answers).item() == pytest.approx((0.0 + 1.25) / 2)
    assert objective.generative(scores, answers).item() == pytest.approx(-(2.0 + 0.25) / 2)
    both = objective.generative(scores, answers) + objective.cross_entropy(scores, answers)
    assert objective.mix(scores, answers).item() == pytest.approx(both.item())
    assert metrics.accuracy([0, 1, 1], [0, 1, 0]) == pytest.approx(200 / 3)
    assert metrics.f1_macro([0, 1, 1], [0, 1, 0]) == pytest.approx(2 / 3)


GOOD = {"premise": "It rained.", "choice1": "It is wet.", "choice2": "It is dry.", "question": "effect", "label": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choice2": None}, r"train\.jsonl:2: choice2 is None, expected a text"),
        ({"label": 2}, r"train\.jsonl:2: label is 2, expected one of 0, 1"),
        ({"label": True}, r"train\.jsonl:2: label is True, expected one of 0, 1"),
        ({"question": "why"}, r"train\.jsonl:2: question is 'why', expected cause or effect"),
        ("premise", r"train\.jsonl:2: has no premise, expected premise, choice1"),
        ("{", r"train\.jsonl:2: is not JSON"),
    ],
)
def test_what_is_wrong_with_a_task_names_file_and_line(tmp_path, change, message):
    settings = glm_cases.cloze(tmp_path)
    row = {**GOOD, "idx": 1, **(change if isinstance(change, dict) else {})}
    row.pop(change, None) if isinstance(change, str) else None
    line = change if change == "{" else json.dumps(row)
    Path(settings.folder, "train.jsonl").write_text(json.dumps({**GOOD, "idx": 0}) + "\n" + line + "\n")
    with pytest.raises(DataError, match=message):
        check_examples(settings)


def test_what_is_wrong_with_a_prompt(tmp_path):
    settings = glm_cases.cloze(tmp_path)
    tokenizer, example = load_vocabulary(settings.vocabulary), read_examples(settings, "train")[0]
    with pytest.raises(DataError, match=r"prompt: has no \[MASK\] in its first 63 tokens"):
        Copa(tokenizer, 64, 0).row(tokenizer.encode("no blank here"), None)
    with pytest.raises(DataError, match=r"example 0: prompt: \d+ tokens, \d+ above what --seq-length 32 leaves"):
        Copa(tokenizer, 32, 0).rows(example)
    with pytest.raises(ConfigError, match="--pattern-id: 7, expected one of 0, 1, 2, 3, 4"):
        Rte(tokenizer, 64, 7)
