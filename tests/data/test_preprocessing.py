"""`ascend-adapt preprocess`: equal bytes for all engines, workers and interruptions, and no output after an error."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from ascend_adapt.data import IndexedDataset
from ascend_adapt.data import preprocessing as preprocessing_module
from ascend_adapt.data.blocks import Position, TextBlock, read_blocks
from ascend_adapt.data.inputs import ARCHIVES, COMPRESSED, JSON_LINES, Input, find_inputs
from ascend_adapt.data.preprocessing import PreprocessRequest, preprocess
from ascend_adapt.data.tokenizer import TYPES, TokenizerRequest, load_tokenizer
from ascend_adapt.errors import BadLine, DataError, SettingsError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FACTS = json.loads(Path(__file__).with_name("upstream_bytes.json").read_text())
GOOD, BLANK, CUT, NOT_UTF8 = '{"text": "good"}', b"", b'{"text": "cut', b"\xff\xfe"


@pytest.fixture
def arguments(gpt2_files, tmp_path):
    """The options of GPT-2 for an output in tmp_path/out."""
    vocab, merges = gpt2_files
    options = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab", vocab, "--merge-file", merges]
    return ["preprocess", *options, "--output-prefix", tmp_path / "out" / "o"]


@pytest.fixture
def request_of(gpt2_files, tmp_path):
    """A request with GPT-2, its output in tmp_path/out."""

    def make(*inputs, engine="hf", **options):
        tokenizer = TokenizerRequest("GPT2BPETokenizer", *gpt2_files, engine=engine)
        options = {"output_prefix": str(tmp_path / "out" / "o"), "tokenizer": tokenizer, **options}
        return PreprocessRequest(inputs=tuple(map(str, inputs)), **options)

    return make


def files(folder):
    """The digest of every file in ``folder``, hidden ones too."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder).glob("*"))}


def hidden_files(folder):
    return [path.name for path in Path(folder).glob(".*")]


@pytest.mark.parametrize("content", ["with_empty", "without_empty"])
@pytest.mark.parametrize(("engine", "workers"), [("hf", 1), ("hf", 2), ("gigatoken", 2), ("tiktoken", 1)])
def test_the_bytes_of_the_upstream_tools(corpus, tmp_path, request_of, content, engine, workers):
    texts = corpus.json_lines(corpus.documents())
    if content == "without_empty":
        texts = b"".join(line for line in texts.splitlines(keepends=True) if b'"text": ""' not in line)
    assert hashlib.sha256(texts).hexdigest() == FACTS[content]["input_sha256"]
    (tmp_path / "in.jsonl").write_bytes(texts)
    preprocess(request_of(tmp_path / "in.jsonl", engine=engine, workers=workers, append_eod=True))
    found = files(tmp_path / "out")
    mine = {suffix: found[f"o_text_document.{suffix}"] for suffix in ("bin", "idx")}
    digests = dict(FACTS[content]["digests"])
    if content == "with_empty":
        # From 23.06 on, Megatron gives an empty document an entry in doc_idx, but no sequence.
        core = digests.pop("mlm09")
        assert core["bin"] == mine["bin"]
        assert core["idx"] != mine["idx"]
    assert len(digests) >= 4
    assert all(upstream == mine for upstream in digests.values())


def test_bad_lines_are_an_error_with_file_and_line(arguments, write_lines, run_command, tmp_path):
    path = write_lines([GOOD.encode(), CUT, NOT_UTF8, BLANK, GOOD.encode()])
    started = time.monotonic()
    job = run_command(*arguments, "--input", path, "--workers", 2)
    assert job.returncode == 1
    assert f"{path}:2: not JSON" in job.stderr.decode()
    assert "Traceback" not in job.stderr.decode()
    assert time.monotonic() - started < 60
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_skipped_and_counted(arguments, write_lines, run_command, tmp_path, workers):
    path = write_lines([GOOD.encode(), CUT, NOT_UTF8, BLANK, GOOD.encode(), "", b'{"text": ""}'])
    job = run_command(*arguments, "--input", path, "--workers", workers, "--on-bad-line", "skip")
    assert job.returncode == 0, job.stderr
    out = tmp_path / "out" / "o_text_document"
    counts = "6 documents in, 2 out, 2 empty, 2 bad, 1 blank lines, 2 tokens"
    assert job.stdout.decode() == f"{out}: {counts}\n"
    assert f"{path}:3: not UTF-8" in job.stderr.decode()
    assert [sequence.tolist() for sequence in IndexedDataset(out)] == [[11274], [11274]]
    assert hidden_files(out.parent) == []


def test_a_compressed_file_gives_the_same_bytes(write_lines, request_of, tmp_path, corpus):
    plain = write_lines(corpus.documents(20, seed=2))
    packed = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
    inputs = [plain]
    for suffix, pack in packed.items():
        inputs.append(plain.with_name(plain.name + suffix))
        inputs[-1].write_bytes(pack(plain.read_bytes()))
    seen = set()
    engines = [("hf", 1), ("gigatoken", 1), ("gigatoken", 2), ("tiktoken", 1)]
    # The plain file with every engine, each compressed one with one of them.
    paths = [plain] * len(engines) + inputs[1:]
    for path, (engine, workers) in zip(paths, engines + engines[1:], strict=True):
        preprocess(request_of(path, engine=engine, workers=workers))
        seen.add(tuple(files(tmp_path / "out").items()))
    preprocess(request_of(inputs[-1], workers=2))
    seen.add(tuple(files(tmp_path / "out").items()))
    assert len(seen) == 1


def test_an_unknown_suffix_is_an_error(arguments, run_command, tmp_path):
    (tmp_path / "in.foo").write_text(GOOD)
    job = run_command(*arguments, "--input", tmp_path / "in.foo")
    assert job.returncode == 1
    assert "in.foo: unknown suffix" in job.stderr.decode()
    assert not (tmp_path / "out").exists()


def test_parquet_and_another_encoding_give_the_same_files(request_of, write_lines, tmp_path):
    more = {"append_eod": True, "tokenizer": TokenizerRequest("CharLevelTokenizer")}
    texts = [f"{number} 汉字 text" for number in range(700)]
    rows = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    preprocess(request_of(write_lines(texts), **more))
    truth = files(tmp_path / "out")
    (tmp_path / "gb.jsonl").write_text(rows, encoding="gb18030")
    preprocess(request_of(tmp_path / "gb.jsonl", **more, encoding="GB18030"))
    assert files(tmp_path / "out") == truth
    parquet.write_table(pyarrow.table({"n": range(701), "text": [None, *texts]}), tmp_path / "in.parquet")
    with pytest.raises(BadLine, match=r"in\.parquet:1: 'text' is a JSON null, expected a string"):
        preprocess(request_of(tmp_path / "in.parquet", **more))
    assert preprocess(request_of(tmp_path / "in.parquet", **more, skip_bad_lines=True)).bad == 1
    assert files(tmp_path / "out") == truth


def test_a_line_too_long_is_skipped_and_counted(request_of, write_lines, tmp_path, monkeypatch):
    monkeypatch.setattr("ascend_adapt.data.blocks.LONGEST_LINE", 5000)
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 1000)
    path = write_lines(["before", "x" * 20_000, "after"])
    counts = preprocess(request_of(path, skip_bad_lines=True))
    assert (counts.documents, counts.bad) == (2, 1)
    assert counts.first_bad[0].startswith(f"{path}:2: no line break in 5000 bytes")


def test_a_file_system_without_locks_is_not_another_process(request_of, write_lines, tmp_path, monkeypatch):
    def flock(stream, flags):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)  # no such file system is available here
    with pytest.raises(DataError, match=r"No locks available, expected a file system with locks"):
        preprocess(request_of(write_lines(["a"])))


def test_standard_input_several_keys_and_the_spellings_of_gpt_neox(arguments, run_command, tmp_path):
    lines = b'{"a": "good", "b": "bad"}\n{"a": "", "b": "good"}\n'
    job = run_command(
        *arguments, "--input", "-", "--jsonl-keys", "a", "b", "--append-eod", "--num-docs", 2, input=lines
    )
    assert job.returncode == 0, job.stderr
    first, second = (IndexedDataset(tmp_path / "out" / f"o_{key}_document") for key in "ab")
    assert [sequence.tolist() for sequence in first] == [[11274, 50256]]
    assert [sequence.tolist() for sequence in second] == [[14774, 50256], [11274, 50256]]


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n'])
def test_nothing_to_write_is_an_error(arguments, run_command, tmp_path, content):
    (tmp_path / "in.jsonl").write_bytes(content)
    job = run_command(*arguments, "--input", tmp_path / "in.jsonl")
    assert job.returncode == 1
    assert "no document with tokens" in job.stderr.decode()
    assert not (tmp_path / "out").exists()


def test_existing_output_is_kept_after_an_error(request_of, write_lines, tmp_path):
    preprocess(request_of(write_lines(["good"])))
    before = files(tmp_path / "out")
    with pytest.raises(DataError):
        preprocess(request_of(write_lines(["better", CUT])))
    assert files(tmp_path / "out") == before
    assert len(before) == 2


def test_end_of_document_must_exist(tmp_path, write_lines):
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = TokenizerRequest("HFTokenizer", str(tmp_path / "tokenizer.json"), engine="hf")
    request = PreprocessRequest((str(write_lines(["a"])),), str(tmp_path / "o"), tokenizer, append_eod=True)
    with pytest.raises(DataError, match="--append-eod: the tokenizer has no"):
        preprocess(request)


def test_an_id_beyond_the_type_is_an_error(tmp_path, write_lines):
    import tokenizers

    # Three words, so that two bytes are chosen, but an id that needs more.
    vocabulary = {"a": 0, "b": 70_000, "c": 1}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = TokenizerRequest("HFTokenizer", str(tmp_path / "tokenizer.json"), engine="hf")
    request = PreprocessRequest((str(write_lines(["c", "b"])),), str(tmp_path / "out" / "o"), tokenizer)
    with pytest.raises(DataError, match="token id 70000, expected 0 to 65535, as uint16"):
        preprocess(request)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "--workers"),
        ({"keys": ("a", "a")}, "each key once"),
        ({"keys": ()}, "each key"),
        ({"keys": ("text", "a/b")}, "--json-keys: 'a/b'"),
        ({"commit_seconds": float("nan")}, "--commit-interval: nan"),
        ({"commit_seconds": -1.0}, "--commit-interval: -1.0"),
    ],
)
def test_a_request_that_contradicts_itself(request_of, write_lines, options, text):
    with pytest.raises(SettingsError, match=text):
        preprocess(request_of(write_lines(["a"]), **options))


def test_an_output_that_cannot_be_written(request_of, write_lines, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="expected a writable file"):
        preprocess(request_of(write_lines(["a"]), output_prefix=str(tmp_path / "file" / "o")))


def test_ftfy_repairs(request_of, write_lines, tmp_path):
    preprocess(request_of(write_lines(["cafÃ©"]), ftfy=True, output_prefix=str(tmp_path / "repaired")))
    preprocess(request_of(write_lines(["café"]), output_prefix=str(tmp_path / "right")))
    repaired, right = (IndexedDataset(tmp_path / f"{name}_text_document")[0] for name in ("repaired", "right"))
    assert repaired.tolist() == right.tolist()


def test_workers_use_the_chosen_engine(tmp_path, write_lines, gpt2_files):
    import tokenizers

    # A token before every text: gigatoken does not add it, so that auto comes to hf.
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*gpt2_files))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ("<|endoftext|>", 50256)
    tokenizer.add_special_tokens([special[0]])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(f"{special[0]} $A", None, [special])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for workers in (1, 2):
        request = TokenizerRequest("HFTokenizer", str(tmp_path / "tokenizer.json"), engine="auto")
        preprocess(PreprocessRequest((str(write_lines(["good"])),), str(tmp_path / "o"), request, workers=workers))
        assert IndexedDataset(tmp_path / "o_text_document")[0].tolist() == [50256, 11274]


class Killed(BaseException):
    """Replaces a signal: no handler of ours may clean up after it."""


@pytest.mark.parametrize("stop_after", [1, 4, 9])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_interrupted_run_resumes(request_of, corpus, tmp_path, monkeypatch, stop_after, suffix):
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 4000)
    for name in ("a", "b"):
        lines = corpus.json_lines(corpus.documents(30, seed=ord(name)))
        (tmp_path / f"{name}.jsonl{suffix}").write_bytes(gzip.compress(lines) if suffix else lines)
    request = request_of(tmp_path / f"*.jsonl{suffix}", commit_seconds=0)
    seen = []

    def stop(progress):
        seen.append(progress.counts.documents)
        if len(seen) == stop_after:
            raise Killed

    with pytest.raises(Killed):
        preprocess(request, stop)
    # As a kill in the middle of saving leaves it.
    (tmp_path / "out" / ".o_text_document.journal.new").write_text("{")
    assert not any(name.startswith("o_") for name in files(tmp_path / "out"))
    reports = []
    counts = preprocess(request, lambda progress: reports.append((progress.resumed, progress.counts.documents)))
    assert reports[0][0] == (stop_after > 1)
    assert counts.documents == 60
    assert len(reports) < len(list(iter_blocks(request)))
    mine = files(tmp_path / "out")
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 1 << 20)
    preprocess(request_of(tmp_path / f"*.jsonl{suffix}", output_prefix=str(tmp_path / "whole" / "o")))
    assert mine == files(tmp_path / "whole")
    assert hidden_files(tmp_path / "out") == []


def iter_blocks(request):
    return [*read_blocks(find_inputs(request.inputs), 4000, Position()), None]


def test_another_request_starts_from_the_beginning(request_of, corpus, write_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 1000)
    path = write_lines(corpus.documents(30))

    def stop(progress):
        if progress.counts.documents > 10:
            raise Killed

    with pytest.raises(Killed):
        preprocess(request_of(path, commit_seconds=0), stop)
    reports = []
    preprocess(request_of(path, append_eod=True), lambda progress: reports.append(progress.resumed))
    assert not any(reports)


def test_an_unfinished_file_that_shrank_is_not_resumed(request_of, corpus, write_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 1000)
    request = request_of(write_lines(corpus.documents(30)), commit_seconds=0)

    def stop(progress):
        if progress.counts.documents > 10:
            raise Killed

    with pytest.raises(Killed):
        preprocess(request, stop)
    (tmp_path / "out" / ".o_text_document.bin.unfinished").write_bytes(b"")
    with pytest.raises(DataError, match=r"0 bytes, expected \d+ as in its journal"):
        preprocess(request)
    assert list((tmp_path / "out").iterdir()) == []
    assert preprocess(request).documents == 30


@pytest.mark.parametrize("failing", ["bin", "idx"])
def test_an_interruption_between_the_two_renames(request_of, write_lines, tmp_path, monkeypatch, failing):
    preprocess(request_of(write_lines(["old"], "old.jsonl")))
    request = request_of(write_lines(["good", "better"]))
    rename = Path.replace

    def replace(self, target):
        if self.name.endswith(f".{failing}.unfinished"):
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            preprocess(request)
    # An old index must not name new tokens.
    assert not (tmp_path / "out" / "o_text_document.idx").exists()
    assert preprocess(request).documents == 2
    assert len(IndexedDataset(tmp_path / "out" / "o_text_document")) == 2
    assert hidden_files(tmp_path / "out") == []


def test_two_runs_for_one_output(request_of, write_lines):
    request = request_of(write_lines(["good"]))

    def again(progress):
        with pytest.raises(DataError, match="another process is writing it"):
            preprocess(request)

    assert preprocess(request, again).documents == 1


def test_two_runs_with_one_output_in_common(request_of, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"x": "good", "y": "bad"}) + "\n")
    request = request_of(tmp_path / "in.jsonl", keys=("x", "y"))

    def again(progress):
        for keys in (("y", "x"), ("a", "y")):
            with pytest.raises(DataError, match="o_y_document: another process is writing it"):
                preprocess(request_of(tmp_path / "in.jsonl", keys=keys))

    assert preprocess(request, again).documents == 1
    assert hidden_files(tmp_path / "out") == []
    assert len(files(tmp_path / "out")) == 4


def test_an_output_of_another_request_is_not_resumed(request_of, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", 1000)
    for name, more in (("in", ""), ("other", "other ")):
        lines = [json.dumps({"x": text, "y": more + text}) for text in corpus.documents(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    def stop(progress):
        if progress.counts.documents > 10:
            raise Killed

    request = request_of(tmp_path / "in.jsonl", keys=("x", "y"), commit_seconds=0)
    for one in (request, request_of(tmp_path / "other.jsonl", keys=("y",), commit_seconds=0)):
        with pytest.raises(Killed):
            preprocess(one, stop)
    preprocess(request)
    assert hidden_files(tmp_path / "out") == []
    interrupted = files(tmp_path / "out")
    preprocess(request)
    assert files(tmp_path / "out") == interrupted


SMALL_BLOCKS = """
import sys
from ascend_adapt.cli import main
from ascend_adapt.data import preprocessing
preprocessing.BLOCK_BYTES = 20_000
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.every_case), 2])
def test_a_killed_process_resumes_to_the_same_bytes(arguments, request_of, corpus, tmp_path, workers):
    (tmp_path / "in.jsonl").write_bytes(corpus.json_lines(corpus.documents(400, seed=5) * 4))
    preprocess(request_of(tmp_path / "in.jsonl", output_prefix=str(tmp_path / "whole" / "o")))
    (tmp_path / "command.py").write_text(SMALL_BLOCKS)
    options = ["--input", tmp_path / "in.jsonl", "--engine", "hf", "--workers", workers, "--commit-interval", 0]
    command = [sys.executable, *map(str, [tmp_path / "command.py", *arguments, *options])]
    journal = tmp_path / "out" / ".o_text_document.journal.unfinished"
    dice = random.Random(workers)
    kills, documents = 0, [0]
    for _ in range(3):
        before = journal.read_bytes() if journal.exists() else b""
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not journal.exists() or journal.read_bytes() == before):
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        documents.append(json.loads(journal.read_text())["state"]["counts"]["documents"])
    assert kills == 3
    assert documents == sorted(set(documents))
    job = subprocess.run(command, capture_output=True, check=True)
    assert b"resuming after document" in job.stderr
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert hidden_files(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.every_case)],
    ids=["ctrl-c", "terminated", "hung-up"],
)
def test_an_interruption_reports_how_to_resume(arguments, corpus, tmp_path, number, code):
    (tmp_path / "in.jsonl").write_bytes(corpus.json_lines(corpus.documents(400, seed=5) * 4))
    (tmp_path / "command.py").write_text(SMALL_BLOCKS)
    options = ["--input", tmp_path / "in.jsonl", "--engine", "hf", "--workers", 2, "--commit-interval", 0]
    command = [sys.executable, *map(str, [tmp_path / "command.py", *arguments, *options])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
    journal = tmp_path / "out" / ".o_text_document.journal.unfinished"
    while process.poll() is None and not journal.exists():
        time.sleep(0.01)
    # Ctrl-C reaches all processes, also those that still import; a scheduler's signal the one it started.
    os.killpg(process.pid, number) if number != signal.SIGTERM else process.send_signal(number)
    said = process.communicate()[1].decode()
    assert (process.returncode, said) == (
        code,
        "ascend-adapt preprocess: interrupted — the same command resumes from the last saved position\n",
    )
    assert b"resuming after document" in subprocess.run(command, capture_output=True, check=True).stderr


@pytest.mark.parametrize(("engine", "workers"), [("hf", 2), ("gigatoken", 2), ("hf", 1)])
def test_an_impatient_user_does_not_make_it_hang(arguments, corpus, tmp_path, engine, workers):
    text = " ".join(corpus.documents(60, seed=5)) * 2
    (tmp_path / "in.jsonl").write_text((json.dumps({"text": text}) + "\n") * 200)
    options = ["--input", tmp_path / "in.jsonl", "--engine", engine, "--workers", workers, "--commit-interval", 0]
    command = [sys.executable, "-m", "ascend_adapt.cli", *map(str, [*arguments, *options])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    journal = tmp_path / "out" / ".o_text_document.journal.unfinished"
    while process.poll() is None and not journal.exists():
        time.sleep(0.01)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        time.sleep(0.05)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert said == "ascend-adapt preprocess: interrupted — the same command resumes from the last saved position\n"


@pytest.mark.parametrize("from_stdin", [False, True], ids=["nothing saved", "standard input"])
def test_an_interruption_that_cannot_resume_reports_it(arguments, corpus, tmp_path, from_stdin):
    (tmp_path / "in.jsonl").write_bytes(corpus.json_lines(corpus.documents(400, seed=5) * 4))
    (tmp_path / "command.py").write_text(SMALL_BLOCKS)
    seconds = 0 if from_stdin else 3600
    options = ["--input", "-" if from_stdin else tmp_path / "in.jsonl", "--engine", "hf", "--commit-interval", seconds]
    command = [sys.executable, *map(str, [tmp_path / "command.py", *arguments, *options])]
    waited_for = tmp_path / "out" / f".o_text_document.{'journal' if from_stdin else 'bin'}.unfinished"
    with open(tmp_path / "in.jsonl", "rb") as lines:
        process = subprocess.Popen(command, stdin=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not waited_for.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1].decode()
    assert (process.returncode, said) == (
        130,
        "ascend-adapt preprocess: interrupted — the same command starts from the beginning\n",
    )
    assert from_stdin or not (tmp_path / "out").exists()


def test_an_existing_folder_is_kept_after_an_error(request_of, write_lines, tmp_path):
    (tmp_path / "made").mkdir()
    with pytest.raises(DataError):
        preprocess(request_of(write_lines([CUT]), output_prefix=str(tmp_path / "made" / "new" / "newer" / "o")))
    assert list((tmp_path / "made").iterdir()) == []


def test_sentences_are_refused(arguments, write_lines, run_command, tmp_path):
    job = run_command(*arguments, "--input", write_lines(["One. Two."]), "--split-sentences")
    assert (job.returncode, job.stderr.decode().count("\n")) == (2, 1)
    assert "--split-sentences: not supported, expected complete documents" in job.stderr.decode()
    assert not (tmp_path / "out").exists()


def test_the_help_lists_inputs(run_command):
    said = run_command("preprocess", "--help").stdout.decode()
    for name in (*TYPES, *JSON_LINES, *COMPRESSED, *ARCHIVES):
        assert re.search(rf"{re.escape(name)}(?!\w)", said.partition("inputs, one document per line:")[2]), name


@pytest.mark.parametrize("engine", ["hf", "gigatoken", "tiktoken"])
def test_documents_longer_than_a_block(request_of, write_lines, tmp_path, monkeypatch, engine):
    texts = ["short", "word, 字。 x=1\n" * 9000, "", "#" * 50_000, "end"]
    path = write_lines(texts)
    seen = set()
    for block_bytes, workers in ((100, 1), (4000, 2), (1 << 20, 1)):
        monkeypatch.setattr(preprocessing_module, "BLOCK_BYTES", block_bytes)
        preprocess(request_of(path, engine=engine, workers=workers, append_eod=True))
        seen.add(tuple(files(tmp_path / "out").items()))
    assert len(seen) == 1
    loaded = load_tokenizer(request_of(path).tokenizer)
    truth = [loaded.encoder._tokenizer.encode(text).ids + [loaded.eod] for text in texts if text]
    assert [sequence.tolist() for sequence in IndexedDataset(tmp_path / "out" / "o_text_document")] == truth


def test_blocks_in_flight_are_few_or_small(monkeypatch):
    from ascend_adapt.data import workers

    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *arguments: ThreadPoolExecutor(2))
    let_go = threading.Event()
    monkeypatch.setattr(workers, "_in_worker", lambda block: let_go.wait())
    request = TokenizerRequest("CharLevelTokenizer")
    recipe = workers.EncodingRecipe(("text",), False, False, False, np.dtype("<u2"))
    for size, most in ((10, 5), (workers.BYTES_IN_FLIGHT, 3)):
        let_go.clear()
        taken = []
        blocks = (taken.append(n) or TextBlock(Input("x"), 1, bytes(size), Position(), 0) for n in range(9))
        with workers.Workers(request, load_tokenizer(request), recipe, 2) as two:
            reader = threading.Thread(target=lambda: list(two.tokens(blocks)))  # noqa: B023
            reader.start()
            deadline = time.monotonic() + 30
            while len(taken) < most and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert len(taken) == most
            let_go.set()
            reader.join()


def test_a_killed_worker_is_an_error(request_of, write_lines, tmp_path, monkeypatch):
    from ascend_adapt.data import workers

    monkeypatch.setattr(workers, "_in_worker", exit_at_once)
    with pytest.raises(DataError, match="workers: a worker process ended without an error message"):
        preprocess(request_of(write_lines(["good"]), workers=2))
    assert not (tmp_path / "out").exists()


def exit_at_once(block):
    os._exit(1)


def test_ctrl_c_is_not_for_workers_not_even_as_they_start(monkeypatch):
    from ascend_adapt.data import workers

    monkeypatch.setattr(workers, "_in_worker", held_signals)
    request = TokenizerRequest("CharLevelTokenizer")
    recipe = workers.EncodingRecipe(("text",), False, False, False, np.dtype("<u2"))
    with workers.Workers(request, load_tokenizer(request), recipe, 2) as two:
        block = TextBlock(Input("in.jsonl"), 1, b"{}", Position(), 2)
        assert all({signal.SIGINT, signal.SIGHUP} <= set(held) for held in two.tokens([block] * 4))
    assert signal.SIGINT not in held_signals(None)


def held_signals(block):
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())
