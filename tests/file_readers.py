"""How the package opens each kind of file: functions that read a file with the package's own reader.

Each raises AdaptError for a file that is not of its kind. SKIPPED has those that are skipped if they
cannot be read.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

from ascend_adapt.errors import AdaptError


def as_named(path: Path, name: Path) -> None:
    """Give a file another name, also if it is a pipe."""
    name.unlink(missing_ok=True)
    os.link(path, name)


def read_token_index(path: Path) -> None:
    from ascend_adapt.data import IndexedDataset

    as_named(path, path.with_name("text.idx"))
    path.with_name("text.bin").write_bytes(b"")
    IndexedDataset(path.with_name("text"))


def read_tokenizer(kind: str):
    def read(path: Path) -> None:
        from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer

        load_tokenizer(TokenizerRequest(kind, vocab_file=str(path)))

    return read


def read_input(path: Path) -> None:
    from ascend_adapt.data.inputs import find_inputs, open_input

    for source in find_inputs([str(path)]):
        with open_input(source) as (lines, _):
            for line in lines:
                json_line(line)


def json_line(line: bytes) -> None:
    from ascend_adapt.data import documents

    documents._strict_loads(line)


def read_yaml(path: Path) -> None:
    from ascend_adapt.recipes.neox_files import _read

    _read(path)


def read_run_yaml(path: Path) -> None:
    from ascend_adapt.native.__main__ import _configuration

    _configuration([str(path)], {})


def read_deepspeed_json(path: Path) -> None:
    from ascend_adapt.recipes.deepspeed_json import read_file

    read_file(str(path))


def read_collected(path: Path) -> None:
    from ascend_adapt.diagnosis import host_reports

    host_reports.judge([path])


def read_for_doctor(path: Path) -> None:
    from ascend_adapt.problems import reading

    reading.read(path)


def read_vocabulary(path: Path) -> None:
    from ascend_adapt.recipes.vocabulary import _read

    _read("HFTokenizer", str(path))


def read_hostfile(path: Path) -> None:
    from ascend_adapt.launch.placement.hostfile import read

    read(path, print)


def read_job(path: Path) -> None:
    from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory

    as_named(path, path.with_name("job.json"))
    Job.read(RunDirectory(path.parent))


def read_status(path: Path) -> None:
    from ascend_adapt.diagnosis.status_report import NoStatus, of_run

    as_named(path, path.with_name("adapt-status.0.json"))
    try:
        of_run(path.parent)
    except NoStatus as error:
        raise AdaptError(str(error)) from error


def read_evidence(path: Path) -> None:
    from ascend_adapt.diagnosis import evidence

    try:
        evidence.load(path)
    except evidence.EvidenceError as error:
        raise AdaptError(str(error)) from error


def read_other_ranks_status(path: Path) -> None:
    from ascend_adapt.launch.in_process.member import _compare
    from ascend_adapt.launch.in_process.status_file import StatusFile
    from ascend_adapt.launch.one_host.run_directory import RunDirectory

    as_named(path, path.with_name("adapt-status.3.json"))
    StatusFile(RunDirectory(path.parent), 3).is_in_use()
    _compare(RunDirectory(path.parent), {"job": "1", "rank": 0})


def read_rehearsal(path: Path) -> None:
    from ascend_adapt.emulation.rehearsal import report

    as_named(path, path.with_name("rehearsal.0.json"))
    report(path.parent)


def read_progress(path: Path) -> None:
    from ascend_adapt.native.checkpoint.load import PROGRESS, read_progress

    as_named(path, path.with_name(PROGRESS))
    read_progress(path.parent)


def read_kernel_choice(path: Path) -> None:
    from ascend_adapt.kernels import run_record

    run_record._read(path)


def read_wheel(path: Path) -> None:
    from ascend_adapt.emulation.wheel import _unpacked

    wheel = path.with_name("torch_npu-2.13.0-cp311-cp311-linux_x86_64.whl")
    as_named(path, wheel)
    _unpacked(path.parent, wheel)


def read_recording(path: Path) -> None:
    from ascend_adapt.alignment import recording

    (path.parent / "rank-0").mkdir()
    as_named(path, path.parent / "rank-0" / recording.RUN)
    recording.read(path.parent)


def read_steps(path: Path) -> None:
    from ascend_adapt.alignment import recording

    recording.Writer(path.parent / "rank-0", {})
    if path.is_file():
        path.write_bytes(path.read_bytes() + b"\n")
    as_named(path, path.parent / "rank-0" / recording.STEPS)
    recording.read(path.parent)


def read_digests(path: Path) -> None:
    from ascend_adapt.alignment.recording import StepRecord

    as_named(path, path.with_name("step-1.npy"))
    _ = StepRecord(1, path.parent).digests


def read_kept_inputs(path: Path) -> None:
    from ascend_adapt.alignment import kept_inputs

    kept = kept_inputs.path_of(path.parent, 1, "layer", 0)
    kept.parent.mkdir()
    as_named(path, kept)
    kept_inputs.load(path.parent, "layer")


def read_msprobe(name: str):
    def read(path: Path) -> None:
        from ascend_adapt.alignment import msprobe

        folder = path.parent / "step0" / "rank0"
        folder.mkdir(parents=True)
        for valid, content in (("dump.json", {"data": {}}), ("construct.json", {})):
            (folder / valid).write_text(json.dumps(content))
        as_named(path, folder / name)
        msprobe.read_any(path.parent)

    return read


def read_source(path: Path) -> None:
    from ascend_adapt.patches.declare import syntax

    syntax.parse_file(path)


def read_task(path: Path) -> None:
    from ascend_adapt.data.json_lines import read_rows
    from ascend_adapt.evaluation.copa import KEYS

    read_rows(path, KEYS)


def read_text_of_perplexity(path: Path) -> None:
    from ascend_adapt.evaluation.text_perplexity import _documents

    _documents(path, "text")


def read_hugging_face_config(path: Path) -> None:
    from ascend_adapt.checkpoint.hugging_face.files import read_config

    read_config(path)


def read_weight_index(path: Path) -> None:
    from ascend_adapt.checkpoint.hugging_face.files import _weight_files

    as_named(path, path.with_name("model.safetensors.index.json"))
    _weight_files(path.parent)


def read_safetensors(path: Path) -> None:
    from ascend_adapt.checkpoint.hugging_face.files import _open_safetensors

    _open_safetensors(path)


def read_run_of_glm(path: Path) -> None:
    from ascend_adapt.checkpoint.dialects.glm import _of_run

    _of_run([path])


def read_text_of_glm(path: Path) -> None:
    from ascend_adapt.native.samples.glm_text import documents

    list(documents(str(path), 0))


def read_cloze_examples(path: Path) -> None:
    from types import SimpleNamespace

    from ascend_adapt.native.samples.cloze_examples import FILES, read_examples

    as_named(path, path.with_name(FILES["train"]))
    read_examples(SimpleNamespace(folder=str(path.parent), task="copa"), "train")


def read_merges(path: Path) -> None:
    from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer

    vocabulary = path.with_name("vocab.json")
    vocabulary.write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    load_tokenizer(TokenizerRequest("GPT2BPETokenizer", vocab_file=str(vocabulary), merge_file=str(path)))


def read_deepspeed_env(path: Path) -> None:
    from ascend_adapt.launch.placement.environment import of_deepspeed_env

    of_deepspeed_env({"HOME": "/nonexistent", "DS_ENV_FILE": path.name}, path.parent)


def read_sums(path: Path) -> None:
    from ascend_adapt.convert.output_folder import SUMS, check_sums

    as_named(path, path.with_name(SUMS))
    check_sums(path.parent)


def read_failure(path: Path) -> None:
    from ascend_adapt.launch.one_host.failures import _read

    assert _read(path) is None


def read_log(path: Path) -> None:
    from ascend_adapt.problems import log_text

    assert log_text.read(path).lines


def read_settings_of_deepspeed(path: Path) -> None:
    from ascend_adapt_plugins.deepspeed_runtime.configuration import same_configuration

    assert not same_configuration(str(path), {})


def read_own_recording(path: Path) -> None:
    from ascend_adapt.alignment import recording

    as_named(path, path.with_name(recording.RUN))
    recording.Writer(path.parent, {})


def read_end_of_text(path: Path) -> None:
    from types import SimpleNamespace

    from ascend_adapt.evaluation.text import _end_in_config

    as_named(path, path.with_name("config.json"))
    assert _end_in_config(SimpleNamespace(path=path.parent)) is None


def read_journal(path: Path) -> None:
    from ascend_adapt.data.unfinished import Journal

    prefix = path.with_name("text")
    with closing(Journal([prefix], "job")) as first:
        first.write({"done": 1})
    as_named(path, first.path)
    with closing(Journal([prefix], "job")) as resumed:
        assert resumed.state is None


READERS = {
    "token index": ("idx", read_token_index),
    "tokenizer.json": ("json", read_tokenizer("HFTokenizer")),
    "SentencePiece model": ("model", read_tokenizer("SentencePieceTokenizer")),
    "JSON lines": ("jsonl", read_input),
    "JSON lines, gz": ("jsonl.gz", read_input),
    "JSON lines, xz": ("jsonl.xz", read_input),
    "JSON lines, zst": ("jsonl.zst", read_input),
    "Parquet": ("parquet", read_input),
    "hostfile": ("txt", read_hostfile),
    "lm_dataformat": ("dat.zst", read_input),
    "lm_dataformat archive": ("jsonl.zst.tar", read_input),
    "YAML of GPT-NeoX": ("yml", read_yaml),
    "config.yaml of a run": ("yaml", read_run_yaml),
    "DeepSpeed's JSON": ("json", read_deepspeed_json),
    "collected host": ("json", read_collected),
    "a JSON configuration for doctor": ("json", read_for_doctor),
    "a YAML configuration for doctor": ("yaml", read_for_doctor),
    "vocabulary": ("json", read_vocabulary),
    "job.json": ("json", read_job),
    "adapt-status": ("json", read_status),
    "adapt-status of another rank": ("json", read_other_ranks_status),
    "rehearsal of a rank": ("json", read_rehearsal),
    "evidence": ("json", read_evidence),
    "progress of a native checkpoint": ("json", read_progress),
    "chosen kernels": ("json", read_kernel_choice),
    "wheel": ("whl", read_wheel),
    "recording": ("json", read_recording),
    "steps of a recording": ("jsonl", read_steps),
    "digests of a recording": ("npy", read_digests),
    "recorded inputs of a module": ("pt", read_kept_inputs),
    "msprobe dump": ("json", read_msprobe("dump.json")),
    "msprobe dump, order of modules": ("json", read_msprobe("construct.json")),
    "source of a patcher": ("py", read_source),
    "evaluation task or prompts": ("jsonl", read_task),
    "evaluation task or prompts, gz": ("jsonl.gz", read_task),
    "text whose perplexity is computed": ("txt", read_text_of_perplexity),
    "config.json of Hugging Face": ("json", read_hugging_face_config),
    "index of safetensors": ("json", read_weight_index),
    "safetensors": ("safetensors", read_safetensors),
    "run of GLM": ("yaml", read_run_of_glm),
    "plan of GLM": ("json", read_run_of_glm),
    "text of GLM": ("jsonl", read_text_of_glm),
    "task of GLM": ("jsonl", read_cloze_examples),
    "merges": ("txt", read_merges),
    ".deepspeed_env": ("env", read_deepspeed_env),
    "SHA256SUMS": ("txt", read_sums),
}
# Files that are read if they are there: one that cannot be read counts as missing, or is read as text.
SKIPPED = {
    "failure of a rank": ("json", read_failure),
    "log": ("log", read_log),
    "journal of an unfinished preprocessing": ("json", read_journal),
    "DeepSpeed's JSON, compared": ("json", read_settings_of_deepspeed),
    "recording that is replaced": ("json", read_own_recording),
    "config.json of Hugging Face, end of text": ("json", read_end_of_text),
}
