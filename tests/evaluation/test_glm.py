"""GLM: COPA beside the finetuning run's own validation, and blanks beside the rows that training sees."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml
from native import glm_cases

from ascend_adapt import cli
from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.evaluation.glm_run import GlmRun
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.text import TokenizerOptions
from ascend_adapt.native.generation.blank_filling import fill
from ascend_adapt.native.generation.generation import Sampling
from ascend_adapt.native.parallel import mesh
from ascend_adapt.native.samples.blank_infilling import Row
from ascend_adapt.native.samples.glm_loader import collate

PROMPTS = ["The file[MASK] the reader[MASK].", "A longer prompt than that one ends with [gMASK]", "It[sMASK] ran."]
NEW = 6


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    """Folder of a finetuning on COPA, its best checkpoint, its log, and its config.yaml."""
    folder = tmp_path_factory.mktemp("glm")
    settings = glm_cases.finetuning(folder, more={"pattern": 1, "length_penalty": 0.5, "loss": "mix"})
    log = glm_cases.finetune(settings, folder / "run")
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
    return folder, folder / "saved" / "copa" / "best", log


@pytest.fixture
def run(capsys):
    """Runs `ascend-adapt` and returns its JSON."""

    def command(*words):
        assert cli.main([*map(str, words), "--device", "cpu", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


@pytest.fixture(scope="module")
def model(finetuned):
    """The finetuned model with noise, so that its tokens depend on all of the context, and the run that it is from."""
    loaded = LanguageModel.load(finetuned[1], mesh.single(torch.device("cpu")))
    dice = torch.Generator().manual_seed(0)
    for parameter in loaded.decoder.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=dice))
    return loaded, GlmRun.of(loaded.source, TokenizerOptions())


def test_copa_is_the_validation_of_the_finetuning_run(finetuned, run, capsys):
    folder, best, log = finetuned
    words = ("eval", "--task", "copa", "--data", folder / "copa" / "val.jsonl", "--batch-size", "2")
    found = run(*words, "--model", best)
    assert 100 * found["accuracy"] == pytest.approx(json.loads((best / "best.json").read_text())["score"])
    assert any(found["loss"] == pytest.approx(loss, rel=1e-5) for loss in log.losses)
    assert cli.main(["convert", "--input", str(best), "--output", str(folder / "tp2"), "--to", "glm", "--tp", "2"]) == 0
    capsys.readouterr()
    glm = run(*words, "--model", folder / "tp2", "--config", folder / "config.yaml")
    assert glm["dialect"] == "glm"
    assert [glm[name] for name in ("accuracy", "loss")] == [found[name] for name in ("accuracy", "loss")]
    assert run(*words, "--model", best, "--pattern-id", "0")["loss"] != found["loss"]


def likeliest(model, run, prompt):
    """Greedy pieces of each blank by the rows of training: the prefix kernel, all tokens at each step."""
    special = run.tokenizer.special
    ids = [special["ENC"], *run.tokenizer.encode(prompt)]
    masks = [place for place, one in enumerate(ids) if one in {special[name] for name in ("MASK", "sMASK", "gMASK")}]
    ids += [] if prompt.endswith("]") else [special["eos"]]
    tokens, positions, blocks, pieces = [*ids], [*range(len(ids))], [0] * len(ids), []
    for place in masks:
        tokens, positions, blocks = [*tokens, special["sop"]], [*positions, place], [*blocks, 1]
        pieces.append([])
        while len(pieces[-1]) < NEW:
            zeros = np.zeros(len(tokens), np.int64)
            row = Row(np.array(tokens), zeros, zeros, np.array(positions), np.array(blocks), len(ids))
            batch = collate([row])
            with torch.no_grad():
                logits = model.decoder(
                    batch["tokens"], **{n: batch[n] for n in ("position_ids", "block_position_ids", "prefix")}
                )[0, len(tokens) - 1, : model.model.vocab_size]
            token = int(logits.argmax())
            if token in (special["eop"], special["eos"]):
                break
            pieces[-1].append(token)
            tokens, positions, blocks = [*tokens, token], [*positions, place], [*blocks, len(pieces[-1]) + 1]
    return [run.tokenizer.decode(piece) for piece in pieces]


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "no cache"])
def test_a_ragged_batch_fills_blanks_by_the_rows_of_training(model, use_cache):
    found = fill(model[0], model[1].tokenizer, PROMPTS, Sampling(NEW), use_cache=use_cache)
    expected = [likeliest(*model, prompt) for prompt in PROMPTS]
    assert [[blank.text for blank in one.blanks] for one in found] == expected
    assert [len(one.blanks) for one in found] == [2, 1, 1]
    first, second = expected[0]
    assert found[0].text == f"The file{first} the reader{second}."
    assert found[1].text == f"A longer prompt than that one ends with{expected[1][0]}"


def test_draws_of_a_prompt_do_not_depend_on_its_batch(model):
    sampling = Sampling(NEW, temperature=1.5, seed=3)
    together = fill(model[0], model[1].tokenizer, PROMPTS, sampling)
    assert fill(model[0], model[1].tokenizer, PROMPTS, sampling, batch_size=1) == together
    assert together[0].blanks[0].text != together[0].blanks[1].text


def test_a_blank_without_room_stays_empty(model):
    room = model[0].max_positions
    (full,) = fill(model[0], model[1].tokenizer, [f"{'y' * (room - 12)}[MASK] and[MASK]"], Sampling(NEW))
    assert [(one.new_tokens, one.finish) for one in full.blanks][1] == (0, "context")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["generate", "--prompt", "x"], 1, "prompt 1: has no mask token, expected [MASK] or"),
        (["eval", "--task", "ppl", "--data", "x"], 2, "--task ppl: .* is GLM, expected copa"),
        (
            ["generate", "--prompt", "a[MASK]", "--tokenizer-type", "HFTokenizer"],
            2,
            "expected GPT2BPETokenizer for GLM",
        ),
        (["generate", "--prompt", "a[MASK]", "--vocab-file", "x"], 2, "one is given, expected both"),
    ],
)
def test_what_cannot_be_done_with_glm_is_named(finetuned, capsys, words, code, expected):
    assert cli.main([*words, "--model", str(finetuned[1]), "--device", "cpu"]) == code
    complaint = capsys.readouterr().err
    assert all(part in complaint for part in expected.split(" .* "))


def test_glms_own_layout_needs_its_run(finetuned, tmp_path, capsys):
    best = finetuned[1]
    assert cli.main(["convert", "--input", str(best), "--output", str(tmp_path / "glm"), "--to", "glm"]) == 0
    words = ["generate", "--prompt", "a[MASK]", "--model", str(tmp_path / "glm"), "--device", "cpu"]
    assert cli.main(words) == 1
    assert "pass --config with the config.yaml" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text(
        json.dumps({"config": yaml.safe_load((finetuned[0] / "config.yaml").read_text())})
    )
    assert cli.main([*words, "--config", str(tmp_path / "plan.json")]) == 0
    (tmp_path / "other.yaml").write_text("model: 3\n")
    assert cli.main([*words, "--config", str(tmp_path / "other.yaml")]) == 1
    assert "other.yaml: cannot be read" in capsys.readouterr().err
    (tmp_path / "empty.json").touch()
    assert cli.main([*words, "--config", str(tmp_path / "empty.json")]) == 1
    assert "empty.json: cannot be read (it has no 'model')" in capsys.readouterr().err


def test_an_example_too_long_for_its_pattern_is_named_with_the_next_step(finetuned, tmp_path, capsys):
    data = tmp_path / "val.jsonl"
    row = {"premise": "It ran.", "choice1": "a " * 400, "choice2": "b", "question": "cause", "label": 0}
    data.write_text(json.dumps({**row, "choice1": "a"}) + "\n" + json.dumps(row) + "\n")
    words = ["eval", "--task", "copa", "--data", str(data), "--model", str(finetuned[1]), "--device", "cpu"]
    assert cli.main(words) != 0
    error = capsys.readouterr().err
    assert f"{data}: example 2: prompt: " in error
    assert "shorten its text, or finetune with a larger --seq-length" in error
