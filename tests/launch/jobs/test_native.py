"""`ascend-run --native` as a user types it: what is printed, what is refused before anything starts, one run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from launch.terminals import read_all, screen, terminal

from ascend_adapt.launch.jobs import native
from ascend_adapt.launch.request import parse

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 6 --lr 0.003 --log-interval 2 --eval-interval 6 "
    "--eval-iters 1 --split 90,5,5"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Real text, preprocessed as a user does it, with a vocabulary of bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    from ascend_adapt import cli

    folder = tmp_path_factory.mktemp("corpus")
    text = "".join(path.read_text() for path in sorted(Path(__file__).parents[1].glob("test_*.py")))
    documents = [text[start : start + 2000] for start in range(0, 60000, 2000)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
    letters = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    words = f"--input {folder}/text.jsonl --output-prefix {folder}/text --vocab {folder}/vocab.json"
    words += f" --merge-file {folder}/merges.txt --tokenizer-type GPT2BPETokenizer --append-eod --workers 1"
    assert cli.main(["preprocess", *words.split()]) == 0
    return {"--data-path": f"{folder}/text_text_document", "--vocab-file": f"{folder}/vocab.json"}


def words_of(corpus):
    return [word for pair in corpus.items() for word in pair]


def test_a_dry_run_adds_configuration_layout_and_memory(ascend_run):
    argv = ["--nproc", "4", "--device", "cpu", "--native", "megatron", *SIZES.split(), "--data-path", "d"]
    done = ascend_run(*argv, "--tensor-model-parallel-size", "2", "--vocab-size", "257", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert plan["world_size"] == len(plan["ranks"]) == 4
    assert plan["ranks"][0]["argv"][-2:] == ["-m", "ascend_adapt.native"]
    assert plan["config"]["model"]["padded_vocab_size"] == 512
    assert [(one["data"], one["tensor"]) for one in plan["layout"]["ranks"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert plan["layout"]["ranks"][0]["layers"] == [[0, 1]]
    assert [one["rank"] for one in plan["memory_bytes"]] == [0, 1, 2, 3]
    assert all(one["total"] > 0 for one in plan["memory_bytes"])
    reported = json.loads(plan["ranks"][0]["env"]["ASCEND_ADAPT_NATIVE_CONFIG"])
    assert reported == plan["config"]


def test_what_is_asked_for_beside_the_dialect_is_in_the_configuration(ascend_run):
    words = ["--device", "cpu", "--native", "megatron", *SIZES.split(), "--data-path", "d", "--vocab-size", "257"]
    own = ["--compile", "--profile", "3-5", "--profile-ranks", "0-1"]
    done = ascend_run("--nproc", "2", *own, *words, "--dry-run", "--json")
    reported = json.loads(done.stdout)["config"]
    assert (reported["compile"], reported["profile"]) == (True, {"first": 3, "last": 5, "ranks": [0, 1]})
    done = ascend_run("--nproc", "1", *own, *words, "--dry-run", "--json")
    assert (done.returncode, done.stderr) == (
        2,
        "ascend-run: profile: rank 1, expected below 1, the number of ranks — choose other ranks\n",
    )
    done = ascend_run("--profile", "3", "bash")
    assert (done.returncode, done.stderr) == (
        2,
        "ascend-run: --compile, --eval-only, --sample-prompts, --sample-tokens, --profile, --exit-signal: need "
        "--native — leave them out, or use the script's options\n",
    )


@pytest.mark.parametrize(
    ("before", "after", "grace"),
    [([], [], 10.0), ([], ["--save", "s", "--save-interval", "5"], 600.0), (["--grace", "30"], ["--save", "s"], 30.0)],
)
def test_a_run_that_saves_is_given_the_time_for_it(before, after, grace):
    argv = [*before, "--native", "megatron", *SIZES.split(), "--data-path", "d", "--vocab-size", "257", *after]
    assert native.prepare(parse(argv)).request.grace == grace


def test_the_dialects_own_number_of_ranks(ascend_run, tmp_path):
    (tmp_path / "c.yml").write_text(
        '{"num_gpus": 4, "num-layers": 4, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 32,'
        '"max-position-embeddings": 32, "train_micro_batch_size_per_gpu": 1, "train-iters": 3, "data-path": "d",'
        '"pipe-parallel-size": 2, "zero_optimization": {"stage": 1}}'
    )
    argv = ["--device", "cpu", "--native", "neox", "c", "--vocab-size", "99", "--dry-run", "--json"]
    assert json.loads(ascend_run(*argv).stdout)["world_size"] == 4
    assert json.loads(ascend_run("--nproc", "2", *argv).stdout)["layout"]["data"] == 1


def test_a_dry_run_recommends_balanced_pipeline_stages(ascend_run, tmp_path):
    (tmp_path / "c.yml").write_text(
        '{"num-layers": 8, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 32, "train-iters": 3,'
        '"max-position-embeddings": 32, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "data-path": "d",'
        '"pipe-parallel-size": 2}'
    )
    argv = ["--nproc", "2", "--device", "cpu", "--native", "neox", "c", "--vocab-size", "1500", "--dry-run", "--json"]

    def planned(*more):
        plan = json.loads(ascend_run(*argv, *more).stdout)
        notes = [note for note in plan["notes"] if note.startswith("pipeline stages: ")]
        return notes, [rank["layers"] for rank in plan["layout"]["ranks"]]

    [note], layers = planned()
    assert note.startswith("pipeline stages: 4, 4 layers, but the last stage also computes the head")
    assert layers == [[[0, 3]], [[4, 7]]]
    assert planned(*note.partition("pass ")[2].split()) == ([], [[[0, 4]], [[5, 7]]])
    assert planned("--pipeline-model-parallel-layout", "E|t*4|t*4|L")[1] == [[[4, 7]], [[0, 3]]]


def test_the_dialects_own_hosts(ascend_run, tmp_path):
    (tmp_path / "hosts").write_text("w-1 slots=4\nw-2 slots=4\nw-3 slots=4\n")
    (tmp_path / "c.yml").write_text(
        '{"hostfile": "hosts", "num_nodes": 2, "num_gpus": 2, "num-layers": 4, "hidden-size": 64, "seq-length": 32,'
        '"num-attention-heads": 4, "max-position-embeddings": 32, "train_batch_size": 8, "train-iters": 3,'
        '"data-path": "d", "pipe-parallel-size": 2, "save": "kept", "checkpoint-factor": 2}'
    )
    argv = ["--device", "cpu", "--dry-run", "--json", "--native", "neox", "c", "--vocab-size", "99"]
    plan = json.loads(ascend_run(*argv).stdout)
    assert [rank["host"] for rank in plan["ranks"]] == ["w-1", "w-1", "w-2", "w-2"]
    assert (plan["layout"]["pipeline"], plan["layout"]["data"]) == (2, 2)
    assert plan["ranks"][0]["env"]["ASCEND_ADAPT_RUN_DIR"] == str(tmp_path / "kept")
    plan = json.loads(ascend_run("--exclude", "w-1", *argv).stdout)
    assert {rank["host"] for rank in plan["ranks"]} == {"w-2", "w-3"}


@pytest.mark.parametrize(
    ("more", "reported", "code"),
    [
        ("--num-layrs 3", "--num-layrs: unknown to megatron", 2),
        ("--min-lr 1.0", "min_lr: 1.0, expected at most lr = 0.003", 2),
        ("--tensor-model-parallel-size 4", "ranks: 2, expected a multiple of tensor 4 x pipeline 1 = 4", 2),
        ("--pad-vocab-size-to 100", "vocabulary: 257 ids, expected at most the table's 100 rows", 2),
        ("--seq-length 100000 --max-position-embeddings 100000", "expected at least 100001 for a sample", 1),
        ("--data-path nowhere", "nowhere", 1),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(ascend_run, corpus, tmp_path, more, reported, code):
    argv = ["--nproc", "2", "--device", "cpu", "--log-dir", "run", "--native", "megatron", *SIZES.split()]
    done = ascend_run(*argv, *words_of(corpus), *more.split())
    assert done.returncode == code
    assert reported in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def saving(corpus, folder):
    """The arguments of two tensor-parallel ranks that save every third step, and resume."""
    words = [*SIZES.split(), *words_of(corpus), "--tensor-model-parallel-size", "2", "--log-interval", "1"]
    words += ["--train-iters", "12", "--lr-decay-iters", "12", "--save-interval", "3"]
    words += ["--save", folder, "--load", folder]
    words += ["--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
    return ["--nproc", "2", "--device", "cpu", "--log-dir", folder, "--native", "megatron", *words]


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """The folder of a job that was not killed, and what it printed."""
    folder = tmp_path_factory.mktemp("straight")
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", *saving(corpus, "run")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_two_ranks_train_on_real_text(ascend_run, straight):
    run_dir, printed = straight
    lines = [line for line in printed.splitlines() if line.startswith(" iteration")]
    assert [line.split("|")[0].split()[1] for line in lines] == [f"{number}/" for number in range(1, 13)]
    assert all(" | consumed tokens: " in line and line.endswith(" |") for line in lines)
    assert "validation loss at iteration 6 | lm loss value: " in printed
    assert "validation loss at the end of training for test data | " in printed
    rows = rows_of(run_dir)
    assert [row["iteration"] for row in rows] == list(range(1, 13))
    assert rows[-1]["lm_loss"] < rows[0]["lm_loss"] < 6.5  # of 512 rows: a loss of 6.2 at the start
    configuration = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (configuration["parallel"]["tensor"], configuration["dialect"]) == (2, "megatron")
    # The configuration that was kept is one that a run can be started from.
    kept = str(run_dir / "config.yaml")
    again = ascend_run("--nproc", "2", "--device", "cpu", "--dry-run", "-m", "ascend_adapt.native", kept)
    assert again.returncode == 0, again.stderr


def test_patches_for_cuda_code_are_not_applied_to_a_run_without_any(straight):
    run_dir, _ = straight
    status = json.loads((run_dir / "adapt-status.0.json").read_text())
    assert status["digest"]
    assert "cuda_code" not in {one["plugin"] for one in status["outcomes"]}


def test_a_run_on_a_terminal_has_a_bar_below_its_lines(corpus, tmp_path):
    ours, theirs = terminal(400)
    argv = [sys.executable, "-m", "ascend_adapt.launch.cli", "--nproc", "1", "--device", "cpu", "--log-dir", "run"]
    argv += ["--native", "megatron", *SIZES.split(), *words_of(corpus)]
    env = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = read_all(ours)
        assert process.wait(60) == 0, seen
    os.close(ours)
    lines = screen(seen, 400)
    bars = [line for line in lines if re.search(r"\d/6 .*samples/s", line)]
    assert len(bars) == 1
    assert " 6/6 loss " in bars[0]
    assert lines[-2:] == [bars[0], ""]
    log = (tmp_path / "run" / "rank-0.log").read_text()
    assert "\x1b" not in log
    assert log.count(" iteration ") >= 3
    assert {line.rstrip() for line in log.splitlines()} <= set(lines)


def test_a_killed_run_resumes_bit_for_bit(ascend_run, corpus, straight, tmp_path):
    def losses(folder):
        return [(row["iteration"], row["lm_loss"], row["grad_norm"]) for row in rows_of(folder)]

    command = [sys.executable, "-m", "ascend_adapt.launch.cli", *saving(corpus, "killed")]
    job = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    ranks = wait_for(tmp_path / "killed", "iter_0000003")
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    assert job.wait(60) != 0
    job.stdout.close()
    done = ascend_run(*saving(corpus, "killed"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"resuming from killed/iter_00000(03|06|09|12), iteration", done.stdout)
    assert losses(tmp_path / "killed") == losses(straight[0])
    assert len(losses(tmp_path / "killed")) == 12


def wait_for(folder, checkpoint):
    """Return the ranks of the job that saves there, once it has that checkpoint."""
    until = time.monotonic() + 100
    while not (folder / checkpoint).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"ASCEND_ADAPT_RUN_DIR={folder}".encode() in variables and b"RANK=0" in variables:
                found.append(int(entry.name))
    return found


def test_the_neox_example_made_small_trains_as_two_stages(ascend_run, corpus, tmp_path):
    small = (
        "--num_gpus 2 --global_num_gpus 2 --pipe-parallel-size 2 --model-parallel-size 1 --num-layers 4 --eval-iters 1 "
        "--hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --split 90,5,5 "
        "--train_micro_batch_size_per_gpu 2 --gradient_accumulation_steps 2 --train-iters 4 --lr-decay-iters 4 "
        "--checkpoint-factor 100 --load null --tokenizer_type GPT2BPETokenizer"
    )
    keys = ["--fp16", "{enabled: false}", *words_of(corpus)]
    argv = ["--device", "cpu", "--native", "neox", "-d", str(EXAMPLES / "gpt_neox"), "20B.yml"]
    done = ascend_run(*argv, *small.split(), *keys, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(" samples/sec: ")]
    assert len(lines) == 2  # every second iteration
    assert re.search(r" iteration        4/       4 \| .* approx flops per GPU: .* \| lm_loss: \d", lines[-1])
    run_dir = tmp_path / "20B_checkpoints"
    assert (run_dir / "metrics.jsonl").read_text().count("\n") == 2
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["parallel"]["stages"] == [2, 2]


def test_oneflows_line_of_one_rank(ascend_run, corpus):
    sizes = (
        "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --micro-batch-size 2 --num-accumulation-steps 2 "
        "--seq-length 32 --train-iters 4 --learning-rate 0.003 --lr-decay-style cosine --lr-decay-iters 10 "
        "--lr-warmup-iters 1 --vocab-size 257 --log-interval 2 --dataset " + corpus["--data-path"]
    )
    done = ascend_run("--device", "cpu", "--log-dir", "run", "--native", "oneflow", *sizes.split(), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in table] == ["step", "--------", "2", "4"]
    assert [line.split("|")[3].strip() for line in table[2:]] == ["8", "16"]
