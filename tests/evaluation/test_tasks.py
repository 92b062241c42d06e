"""Scores of the tasks beside transformers' logits, and the command line of `eval` and `generate`."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from evaluation.conftest import CONTEXT

from ascend_adapt import cli
from ascend_adapt.config.train_config import Parallel
from ascend_adapt.errors import CheckpointError
from ascend_adapt.evaluation import lambada
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.scoring import score
from ascend_adapt.evaluation.text_perplexity import windows
from ascend_adapt.native.parallel.mesh import Mesh

TOKENIZER = ["--tokenizer-type", "CharLevelTokenizer", "--device", "cpu"]
PASSAGES = ["the cat sat on the mat", "one two three four", "a job failed , and ran again ."]
PREMISES = [
    {"premise": "The job failed.", "choice1": "The disk was full.", "choice2": "It rained.", "question": "cause"},
    {"premise": "A rank died.", "choice1": "All was well.", "choice2": "The others waited.", "question": "effect"},
]


def log_probabilities(model, context, continuation):
    """Transformers' log-probability of each token of a continuation, and whether it is the likeliest."""
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1]
    each = logits.log_softmax(-1)
    targets = torch.tensor(list(continuation))
    return each[range(len(targets)), targets], (logits.argmax(-1) == targets).tolist()


@pytest.fixture
def lines(tmp_path):
    """Writes objects as JSON lines and returns the path."""

    def write(rows):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def run(capsys):
    """Runs `ascend-adapt` and returns its JSON."""

    def command(*words):
        assert cli.main([*map(str, words), *TOKENIZER, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


def test_one_wrong_token_of_the_last_word_makes_it_wrong(ours, theirs):
    """lambada-1: the last token is the likeliest one, the first is not."""
    context = list(b"the last word of")
    with torch.no_grad():
        first = int(theirs["gpt2"](torch.tensor([context])).logits[0, -1].argmax())
        wrong = (first + 1) % 512
        then, after_wrong = (
            int(theirs["gpt2"](torch.tensor([[*context, one]])).logits[0, -1].argmax()) for one in (first, wrong)
        )
    right, last_alone = score(ours["gpt2"], [(context, [first, then]), (context, [wrong, after_wrong])])
    assert (right.is_greedy, last_alone.is_greedy) == (True, False)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_lambada_is_that_of_transformers(folders, theirs, run, lines, name):
    found = run("eval", "--task", "lambada", "--model", folders[name], "--data", lines([{"text": p} for p in PASSAGES]))
    words = [lambada.split(passage) for passage in PASSAGES]
    assert words[0] == ("the cat sat on the", " mat")
    sums = [float(log_probabilities(theirs[name], c.encode(), w.encode())[0].sum()) for c, w in words]
    assert found["perplexity"] == pytest.approx(math.exp(-sum(sums) / len(sums)), rel=1e-4)
    assert found["text"].startswith("detokenized")


def test_copa_takes_the_likelier_choice(folders, theirs, run, lines):
    texts = [
        ("The job failed because", " the disk was full.", " it rained."),
        ("A rank died therefore", " all was well.", " the others waited."),
    ]
    taken = []
    for context, *choices in texts:
        sums = [log_probabilities(theirs["llama"], context.encode(), one.encode())[0].sum() for one in choices]
        taken.append(int(sums[1] > sums[0]))
    rows = [{**row, "label": label} for row, label in zip(PREMISES, taken, strict=True)]
    found = run("eval", "--task", "copa", "--model", folders["llama"], "--data", lines(rows))
    assert (found["examples"], found["accuracy"]) == (2, 1.0)


@pytest.mark.parametrize("stride", [16, CONTEXT])
def test_perplexity_with_a_stride_is_that_of_transformers(folders, theirs, run, tmp_path, stride):
    text = "Perplexity of a text that is longer than the context of the model; " * 3
    (tmp_path / "doc.txt").write_text(text)
    found = run(
        "eval", "--task", "ppl", "--model", folders["gpt_neox"], "--data", tmp_path / "doc.txt", "--stride", stride
    )
    total, done, tokens = 0.0, 0, [0, *text.encode()]
    while done < len(text):
        end = min(done + (stride if done else CONTEXT), len(text))
        begin = max(0, end - CONTEXT)
        each, _ = log_probabilities(theirs["gpt_neox"], tokens[begin : done + 1], tokens[done + 1 : end + 1])
        total, done = total + float(each.sum()), end
    assert found["tokens"] == found["bytes"] == len(text)
    assert found["token_perplexity"] == pytest.approx(math.exp(-total / len(text)), rel=1e-4)
    assert found["word_perplexity"] == pytest.approx(math.exp(-total / len(text.split(" "))), rel=1e-4)


def test_a_byte_order_mark_is_not_part_of_the_text(folders, run, tmp_path):
    texts = []
    for name, encoding in (("plain.txt", "utf-8"), ("mark.txt", "utf-8-sig")):
        (tmp_path / name).write_text("some text", encoding=encoding)
        found = run("eval", "--task", "ppl", "--model", folders["gpt2"], "--data", tmp_path / name)
        texts.append((found["bytes"], found["loss"]))
    assert texts[0] == texts[1]


def test_options_of_another_task_are_refused(folders, lines, capsys):
    words = ["eval", "--task", "lambada", "--model", str(folders["gpt2"]), "--data", str(lines([{"text": "a b"}]))]
    assert cli.main([*words, "--stride", "4", "--json-key", "body", *TOKENIZER]) == 2
    assert "--stride, --json-key: given, expected only for --task ppl" in capsys.readouterr().err


def test_windows_predict_every_token_once():
    pieces = list(windows(range(1, 24), 0, 8, 3))
    assert [token for _, predicted in pieces for token in predicted] == list(range(1, 24))
    assert all(len(context) + len(predicted) <= 9 for context, predicted in pieces)


def test_two_tensor_parallel_ranks_give_what_one_gives(folders, run):
    words = ("generate", "--model", folders["llama"], "--prompt", "The quick", "--prompt", "x", "--max-new-tokens", 12)
    one, two = run(*words), run(*words, "--tp", 2)
    assert (one["tensor_parallel"], two["tensor_parallel"]) == (1, 2)
    assert one["results"] == two["results"]


def test_a_text_ends_before_its_stop_string(folders, run):
    words = ("generate", "--model", folders["gpt2"], "--prompt", "The quick", "--max-new-tokens", 24)
    whole = run(*words)["results"][0]["text"]
    end = whole[-1]
    stopped = run(*words, "--stop", end)["results"][0]
    assert (stopped["text"], stopped["finish"]) == (whole[: whole.find(end)], "stop")


@pytest.mark.parametrize(
    ("task", "rows", "expected"),
    [
        ("copa", [{**PREMISES[0], "label": 2}], "data.jsonl:1: label is '2', expected one of 0, 1"),
        ("copa", [{"premise": "A.", "label": 0}], "1: has no 'choice1'; .*1: has no 'choice2'; .*1: has no 'question'"),
        ("copa", [{**PREMISES[0], "label": True}], "1: label is 'True'"),
        ("lambada", [{"text": "fine text"}, {"txt": "x"}], "data.jsonl:2: has no 'text'"),
        ("lambada", [{"text": "word"}], "expected at least two words"),
        ("lambada", ["text"], "data.jsonl:1: is a str, expected an object"),
        ("lambada", [{"text": "half a pair \ud83d"}], "data.jsonl:1: text is .*expected text"),
        ("ppl", [], "has no lines"),
    ],
)
def test_what_is_wrong_with_a_task_file_is_named(folders, lines, capsys, task, rows, expected):
    words = ["eval", "--task", task, "--model", str(folders["gpt2"]), "--data", str(lines(rows)), *TOKENIZER]
    assert cli.main(words) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"ascend-adapt eval: {lines(rows)}")
    assert re.search(expected, complaint)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ([], 2, "has no tokenizer, expected tokenizer.json, .* — pass --tokenizer-type"),
        (
            [*TOKENIZER, "--prompt", "y" * CONTEXT],
            1,
            "prompt 2: 64 tokens, expected fewer than the model's context of 64",
        ),
        ([*TOKENIZER, "--temperature", "0", "--top-k", "5"], 2, "greedy — leave them out"),
        ([*TOKENIZER, "--stop", ""], 2, "--stop: is empty"),
        ([*TOKENIZER, "--prompt", "caf\udce9"], 2, "--prompt: prompt 2 is not UTF-8"),
        ([*TOKENIZER, "--temperature", "1e-320"], 2, "--temperature: 1e-320, expected 0 .greedy. or at least 1e-30"),
        ([*TOKENIZER, "--top-k", "5", "--seed", str(2**64)], 2, "--seed: 18446744073709551616, expected less than"),
        ([*TOKENIZER, "--device", "cuda"], 2, "--device cuda: torch .* finds no such device"),
        ([*TOKENIZER, "--device", "cuda:0"], 2, "--device: cuda:0, expected auto or one of cpu, cuda, npu"),
        ([*TOKENIZER, "--tp", "3"], 1, "^ascend-adapt generate: .*cannot be divided over 3 .* — pass --tp 2\n$"),
        ([*TOKENIZER, "--prompt-file", "/dev/null"], 1, "/dev/null: not a regular file"),
    ],
)
def test_what_cannot_be_generated_is_named(folders, capfd, words, code, expected):
    assert cli.main(["generate", "--model", str(folders["gpt2"]), "--prompt", "x", *words]) == code
    assert re.search(expected, capfd.readouterr().err)


def test_the_log_of_a_failed_rank_is_kept(folders, capfd):
    words = ["generate", "--model", str(folders["gpt2"]), "--prompt", "x", "--tp", "2", *TOKENIZER]
    assert cli.main([*words, "--device", "cpu", "--prompt", "y" * CONTEXT]) == 1
    log = Path(re.search(r"its log: (\S+)", capfd.readouterr().err)[1])
    assert "prompt 2: 64 tokens" in log.read_text()
    shutil.rmtree(log.parents[1])


def test_heads_that_ranks_cannot_share_are_named(folders):
    three = Mesh(Parallel(tensor=3), 0, torch.device("cpu"))
    with pytest.raises(CheckpointError, match=r"num_heads 4.* over 3 tensor-parallel ranks, .* pass --tp 2"):
        LanguageModel.load(folders["gpt2"], three)


@pytest.mark.parametrize("to", [["native"], ["neox", "--tp", "2"], ["megatron", "--tp", "2"], ["megatron-core"]])
def test_every_dialect_has_the_loss_of_the_checkpoint_it_was_converted_from(folders, run, tmp_path, lines, to, capsys):
    assert cli.main(["convert", "--input", str(folders["gpt2"]), "--output", str(tmp_path / "to"), "--to", *to]) == 0
    capsys.readouterr()
    data = lines([{"text": passage} for passage in PASSAGES])
    found = [run("eval", "--task", "ppl", "--model", one, "--data", data) for one in (folders["gpt2"], tmp_path / "to")]
    assert found[1]["dialect"] == to[0]
    assert found[0]["loss"] == found[1]["loss"]
