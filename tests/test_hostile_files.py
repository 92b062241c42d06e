"""A planted payload in every kind of file the package opens: none runs, and a file too deep to parse is no traceback.

The payload is a pickle that makes a file. docs/security.md has the table of kinds.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import itertools
import json
import os
import pickle
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ascend_adapt.checkpoint.distributed import METADATA
from ascend_adapt.errors import AdaptError, CheckpointError, TrainingError
from ascend_adapt.native.checkpoint.reader import CheckpointReader


class Payload:
    """Unpickled without care, makes the file that it names."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path):
    yield tmp_path / "it-ran"
    assert not (tmp_path / "it-ran").exists(), "the payload ran"


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "iter_0000001"
    dcp.save({"a": torch.arange(3.0)}, storage_writer=dcp.FileSystemWriter(folder))
    return folder


def resaved(folder: Path, change) -> None:
    metadata = pickle.loads((folder / METADATA).read_bytes())
    change(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def loaded(folder: Path) -> torch.Tensor:
    """Load as native/checkpoint/load.py does: the metadata is read first."""
    CheckpointReader(folder).read_metadata()
    state = {"a": torch.zeros(3)}
    dcp.load(state, storage_reader=CheckpointReader(folder))
    return state["a"]


def test_a_valid_checkpoint_loads(checkpoint):
    assert loaded(checkpoint).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("place", ["alone", "planner_data"])
def test_metadata_runs_nothing(checkpoint, marker, place):
    if place == "alone":
        (checkpoint / METADATA).write_bytes(pickle.dumps(Payload(marker)))
    else:
        resaved(checkpoint, lambda metadata: setattr(metadata, "planner_data", {"a": Payload(marker)}))
    with pytest.raises(CheckpointError, match=r"\.metadata: names posix\.mkdir, which can run code, .* — do not use"):
        CheckpointReader(checkpoint).read_metadata()


def test_an_entry_of_bytes_runs_nothing(checkpoint, marker):
    """torch reads what the metadata declares as bytes by weights_only=False."""
    shard = io.BytesIO()
    torch.save(Payload(marker), shard)
    (checkpoint / "__0_0.distcp").write_bytes(shard.getvalue())

    def declare(metadata):
        metadata.state_dict_metadata["a"] = dcp.metadata.BytesStorageMetadata()
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, len(shard.getvalue())
        metadata.storage_data = {dcp.metadata.MetadataIndex("a"): next(iter(metadata.storage_data.values()))}

    resaved(checkpoint, declare)
    with pytest.raises(CheckpointError, match=r"names torch\.distributed\.checkpoint\.metadata\.BytesStorageMetadata"):
        loaded(checkpoint)


def test_a_shard_runs_nothing(checkpoint, marker):
    shard = io.BytesIO()
    torch.save(Payload(marker), shard)
    (checkpoint / "__0_0.distcp").write_bytes(shard.getvalue())

    def declare(metadata):
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, len(shard.getvalue())

    resaved(checkpoint, declare)
    with pytest.raises(dcp.CheckpointException, match="Weights only load failed"):
        loaded(checkpoint)


def test_metadata_names_no_file_elsewhere(checkpoint):
    def point(metadata):
        for place in metadata.storage_data.values():
            place.relative_path = "../secret"

    resaved(checkpoint, point)
    with pytest.raises(CheckpointError, match=r"names the file '\.\./secret', expected files in its own folder"):
        loaded(checkpoint)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"\x80\x04N.", pickle.dumps({"a": 1})])
def test_damaged_metadata_is_no_traceback(checkpoint, content):
    (checkpoint / METADATA).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"\.metadata: cannot be read"):
        loaded(checkpoint)


@pytest.fixture
def allowed():
    return importlib.import_module("ascend_adapt_plugins.checkpoint_allow_list").allowed


def test_what_upstreams_save_is_allowed(allowed, tmp_path):
    """Arguments and the random states of Python, numpy and torch, as Megatron, GPT-NeoX and GLM save them."""
    import random

    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    from ascend_adapt_plugins.checkpoint_allow_list import DEEPSPEED

    scaler = DynamicLossScaler(2.0**16, 2.0, 1000, 1.0, 1, False)
    state = {"args": argparse.Namespace(lr=1.0, params_dtype=torch.float16), "loss_scaler": scaler}
    state |= {"random_rng_state": random.getstate(), "np_rng_state": np.random.RandomState(1).get_state()}
    state |= {"torch_rng_state": torch.get_rng_state(), "zero_stage": ZeroStageEnum.gradients}
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt")
    with allowed(*DEEPSPEED):
        found = torch.load(tmp_path / "model.pt")
    assert found["args"] == state["args"]
    assert found["random_rng_state"] == state["random_rng_state"]
    assert (found["np_rng_state"][1] == state["np_rng_state"][1]).all()
    assert found["loss_scaler"].cur_scale == 2.0**16
    assert found["zero_stage"] is ZeroStageEnum.gradients


@pytest.mark.parametrize("swallows", [False, True])
def test_an_upstream_checkpoint_runs_nothing(allowed, marker, tmp_path, swallows):
    """Also where upstream, as bigscience's does, ends with exit code 0 whatever the error was."""
    file = tmp_path / "mp_rank_00_model_states.pt"
    torch.save({"args": Payload(marker)}, file)

    def load():
        try:
            return torch.load(file, map_location="cpu")
        except BaseException:
            if swallows:
                sys.exit()
            raise

    with (
        pytest.raises(TrainingError, match=rf"^{file}: names posix\.mkdir, .*TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"),
        allowed(),
    ):
        load()


def test_an_exit_that_is_no_refusal_stays(allowed):
    with pytest.raises(SystemExit), allowed():
        sys.exit(3)


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE")
def test_the_opt_in_reads_everything(allowed, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"args": Payload(tmp_path / "trusted")}, tmp_path / "model.pt")
    with allowed():
        torch.load(tmp_path / "model.pt")
    assert (tmp_path / "trusted").is_dir()


def test_the_table_of_kinds_names_tests_that_exist():
    page = Path(__file__).parents[1].joinpath("docs", "security.md").read_text()
    table = page.partition("| file | how it is read | test |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    assert len(table.splitlines()) > 15
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name in named if f"def {name}(" not in tests] == []


def plugin_sources():
    return sorted(Path(__file__).parents[1].joinpath("plugins").rglob("*.py"))


def test_no_plugin_turns_the_check_off():
    keywords = ((path, node) for path in plugin_sources() for node in ast.walk(ast.parse(path.read_text())))
    off = [
        path.name
        for path, node in keywords
        if isinstance(node, ast.keyword) and node.arg == "weights_only" and ast.unparse(node.value) == "False"
    ]
    assert off == []


def test_an_index_cache_runs_nothing(marker, tmp_path):
    from ascend_adapt.data.index_cache import IndexCache

    cache = IndexCache(tmp_path / "cache", builds=True)
    arrays = cache.load({"of": 1}, lambda: {"order": np.arange(4)})
    assert list(arrays["order"]) == [0, 1, 2, 3]
    (planted,) = (tmp_path / "cache").glob("*/order.npy")
    np.save(planted, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    description = planted.with_name("description.json")
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "arrays": {"order": ["|O", [1]]}}))
    assert list(cache.load({"of": 1}, lambda: {"order": np.arange(4)})["order"]) == [0, 1, 2, 3]  # made anew


def read_token_index(path: Path) -> None:
    from ascend_adapt.data import IndexedDataset

    shutil.copyfile(path, path.with_name("text.idx"))
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
    from ascend_adapt.recipes.neox_files import parsed

    parsed(path.read_text(encoding="latin-1"), str(path))


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

    shutil.copyfile(path, path.with_name("job.json"))
    Job.read(RunDirectory(path.parent))


def read_status(path: Path) -> None:
    from ascend_adapt.diagnosis.status_report import NoStatus, of_run

    shutil.copyfile(path, path.with_name("adapt-status.0.json"))
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
    from ascend_adapt.launch.one_host.run_directory import RunDirectory

    shutil.copyfile(path, path.with_name("adapt-status.3.json"))
    _compare(RunDirectory(path.parent), {"job": "1", "rank": 0})


def read_rehearsal(path: Path) -> None:
    from ascend_adapt.emulation.rehearsal import report

    shutil.copyfile(path, path.with_name("rehearsal.0.json"))
    report(path.parent)


def read_progress(path: Path) -> None:
    from ascend_adapt.native.checkpoint.load import PROGRESS, read_progress

    shutil.copyfile(path, path.with_name(PROGRESS))
    read_progress(path.parent)


def read_kernel_choice(path: Path) -> None:
    from ascend_adapt.kernels import run_record

    run_record._read(path)


def read_wheel(path: Path) -> None:
    from ascend_adapt.emulation.wheel import _unpacked

    wheel = path.with_name("torch_npu-2.13.0-cp311-cp311-linux_x86_64.whl")
    shutil.copyfile(path, wheel)
    _unpacked(path.parent, wheel)


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
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("content", ["pickle", "torch.save", "numpy"])
def test_no_other_file_runs_anything(kind, content, marker, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"planted.{suffix}"
    if content == "pickle":
        file.write_bytes(pickle.dumps(Payload(marker)))
    elif content == "torch.save":
        torch.save(Payload(marker), file)
    else:
        with file.open("wb") as stream:
            np.save(stream, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    with pytest.raises(AdaptError):
        read(file)


@pytest.mark.parametrize("kind", ["YAML of GPT-NeoX", "config.yaml of a run"])
def test_yaml_makes_no_objects(kind, marker, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"planted.{suffix}"
    file.write_text(f"a: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(AdaptError, match="is not valid YAML"):
        read(file)


def repeated(line: str) -> str:
    """Return YAML in which each line after the first has the one before it eight times."""
    pairs = itertools.pairwise("abcdefghi")
    lines = [f"{name}: &{name} " + line % ",".join([f"*{before}"] * 8) for before, name in pairs]
    return "\n".join(["a: &a {x: 1}", *lines])


@pytest.mark.parametrize("kind", ["YAML of GPT-NeoX", "config.yaml of a run"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (repeated("[%s]"), "line 6: aliases repeat more than 100000 values"),
        (repeated("{<<: [%s]}"), "line 6: aliases repeat more than 100000 values"),
        ("a: &a [*a]", "line 1: an alias inside of what it stands for"),
    ],
    ids=["lists", "merged", "cyclic"],
)
def test_aliases_of_yaml_are_bounded(kind, text, why, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"bomb.{suffix}"
    file.write_text(text)
    with pytest.raises(AdaptError, match=why):
        read(file)


DEEP = [kind for kind, (suffix, _) in READERS.items() if suffix in ("json", "jsonl", "yml", "yaml")]


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_too_deep_is_no_traceback(kind, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"deep.{suffix}"
    file.write_text("[" * 100_000)
    with pytest.raises(AdaptError):
        read(file)


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_a_wheel_writes_nothing_elsewhere(name, tmp_path):
    from ascend_adapt.emulation.wheel import _unpack

    with zipfile.ZipFile(tmp_path / "planted.whl", "w") as archive:
        archive.writestr(name, "x")
    (tmp_path / "into").mkdir()
    with pytest.raises(AdaptError, match="has no RECORD"):
        _unpack(tmp_path / "planted.whl", tmp_path / "into")
    assert not (tmp_path / "outside").exists()


def test_a_source_archive_writes_nothing_elsewhere(tmp_path):
    from ascend_adapt.testing.releases import _extract

    with tarfile.open(tmp_path / "planted.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with tarfile.open(tmp_path / "planted.tar") as archive, pytest.raises(tarfile.TarError):
        _extract(archive, tmp_path / "into")
    assert not (tmp_path / "outside").exists()
