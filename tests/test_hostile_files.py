"""A planted payload in every kind of file the package opens: none runs, and a file too deep to parse is no traceback.

The payload is a pickle that makes a file. docs/security.md has the table of kinds.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import enum
import importlib
import io
import itertools
import json
import os
import pickle
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from file_readers import READERS, SKIPPED

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.distributed import METADATA
from ascend_adapt.checkpoint.torch_files import load_torch_file
from ascend_adapt.errors import AdaptError, CheckpointError, TrainingError
from ascend_adapt.native.checkpoint.folder import recorded_sums
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


@pytest.fixture
def allowed():
    return importlib.import_module("ascend_adapt_plugins.checkpoint_allow_list").allowed


@pytest.fixture
def enums_by_getattr(monkeypatch):
    """Enum members are pickled as by Python 3.11.0 to 3.11.3."""
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self._name_)))


def test_a_checkpoint_of_an_early_python_3_11_loads(enums_by_getattr, checkpoint, allowed, tmp_path):
    resaved(checkpoint, lambda metadata: None)
    assert b"getattr" in (checkpoint / METADATA).read_bytes()
    assert loaded(checkpoint).tolist() == [0.0, 1.0, 2.0]
    torch.save({"a": Positions.rotary}, tmp_path / "a.pt")
    with allowed(f"{__name__}.Positions"):
        assert torch.load(tmp_path / "a.pt")["a"] is Positions.rotary


class Positions(enum.Enum):
    rotary = 1


class Reached:
    """Pickled as ``getattr`` of something that is not a member of the enum."""

    def __reduce__(self):
        return getattr, (torch.Size, "mro")


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path):
    """Three megabytes of zeros once took six gigabytes."""
    torch.save({"a": torch.zeros(2)}, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content + bytes(1 << 20) if name.endswith("data.pkl") else content)
    with pytest.raises(
        CheckpointError, match=r"model\.pt: cannot be read .*unpacks to \d+ bytes, the archive has \d+\)"
    ):
        load_torch_file(tmp_path / "model.pt")


def test_a_compressed_archive_is_refused(tmp_path):
    """The padding of a small one hides that it unpacks to more. Its compressed bytes were mapped as values."""
    torch.save({"a": torch.arange(6.0)}, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content, zipfile.ZIP_DEFLATED if name.endswith("data/0") else None)
    with pytest.raises(CheckpointError, match=r"model\.pt: cannot be read \(ValueError: its members are compressed\)"):
        load_torch_file(tmp_path / "model.pt")


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_a_torch_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"model\.pt: is a named pipe, not a regular file"):
        load_torch_file(tmp_path / "model.pt")


def test_a_damaged_directory_of_an_archive_is_no_traceback(tmp_path):
    """``zipfile.is_zipfile`` raises an error for an archive of several disks."""
    torch.save({"a": torch.zeros(2)}, tmp_path / "model.pt")
    content = bytearray((tmp_path / "model.pt").read_bytes())
    locator = content.rindex(b"PK\x06\x07")
    content[locator + 4] = 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read .*multiple disks"):
        load_torch_file(tmp_path / "model.pt")


def test_getattr_in_a_pickle_returns_members_of_enums_only(checkpoint, allowed, tmp_path):
    resaved(checkpoint, lambda metadata: setattr(metadata, "planner_data", Reached()))
    torch.save({"a": Reached()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"builtins\.getattr of .*, which can run code, expected a member"):
        CheckpointReader(checkpoint).read_metadata()
    with pytest.raises(CheckpointError, match="holds more than tensors and plain data"):
        load_torch_file(tmp_path / "a.pt")
    with pytest.raises(TrainingError, match="getattr of"), allowed():
        torch.load(tmp_path / "a.pt")


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


def test_a_pipe_in_a_checkpoint_is_not_waited_for(checkpoint, tmp_path):
    (checkpoint / "progress.json").write_text("{}")
    (checkpoint / "SHA256SUMS").write_text("")
    os.mkfifo(checkpoint / "more")
    with pytest.raises(CheckpointError, match="more: is not a regular file"):
        open_checkpoint(checkpoint)
    with pytest.raises(ValueError, match="more is not a regular file"):
        recorded_sums(checkpoint)


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


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("content", ["pickle", "torch.save", "numpy"])
def test_no_other_file_runs_anything(kind, content, marker, tmp_path):
    suffix, read = READERS[kind]
    with pytest.raises(AdaptError):
        read(planted(tmp_path / f"planted.{suffix}", content, marker))


@pytest.mark.parametrize("kind", SKIPPED)
@pytest.mark.parametrize("content", ["pickle", "torch.save", "numpy"])
def test_no_file_that_is_skipped_runs_anything(kind, content, marker, tmp_path):
    suffix, read = SKIPPED[kind]
    read(planted(tmp_path / f"planted.{suffix}", content, marker))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", [*READERS, *SKIPPED])
def test_a_named_pipe_is_not_waited_for(kind, tmp_path):
    suffix, read = {**READERS, **SKIPPED}[kind]
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    with contextlib.suppress(AdaptError):
        read(tmp_path / f"pipe.{suffix}")


def planted(file: Path, content: str, marker: Path) -> Path:
    """Write the payload in a form that Python, torch or numpy can load."""
    if content == "pickle":
        file.write_bytes(pickle.dumps(Payload(marker)))
    elif content == "torch.save":
        torch.save(Payload(marker), file)
    else:
        with file.open("wb") as stream:
            np.save(stream, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    return file


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
        ("a: &a [*a]", "line 1: an alias inside its own anchor"),
    ],
    ids=["lists", "merged", "cyclic"],
)
def test_aliases_of_yaml_are_bounded(kind, text, why, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"bomb.{suffix}"
    file.write_text(text)
    with pytest.raises(AdaptError, match=why):
        read(file)


# For these a list is as good as an object, or a reader further on judges it.
LISTS = ("JSON lines", "a JSON configuration for doctor", "a YAML configuration for doctor", "source of a patcher")
DEEP = [kind for kind, (suffix, _) in READERS.items() if suffix in ("json", "jsonl", "yml", "yaml", "py")]


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_too_deep_is_no_traceback(kind, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"deep.{suffix}"
    file.write_text("[" * 100_000)
    with pytest.raises(AdaptError):
        read(file)


@pytest.mark.parametrize("kind", [kind for kind in DEEP if kind not in LISTS])
def test_a_list_is_no_traceback(kind, tmp_path):
    suffix, read = READERS[kind]
    file = tmp_path / f"list.{suffix}"
    file.write_text("[1]")
    with pytest.raises(AdaptError):
        read(file)


@pytest.mark.parametrize("kind", SKIPPED)
@pytest.mark.parametrize("content", ["[" * 100_000, "[1]"], ids=["deep", "list"])
def test_what_is_too_deep_is_skipped(kind, content, tmp_path):
    suffix, read = SKIPPED[kind]
    file = tmp_path / f"deep.{suffix}"
    file.write_text(content)
    read(file)


def test_code_beside_a_hugging_face_model_does_not_run(marker, tmp_path, monkeypatch):
    """Nor if whoever is at the terminal answers transformers' question with yes."""
    from ascend_adapt.convert.verification import _transformers_logits

    monkeypatch.setattr("builtins.input", lambda question: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    named = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": named}))
    (tmp_path / "own.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        _transformers_logits(tmp_path, torch.zeros(1, 1, dtype=torch.long))


def test_source_that_is_judged_does_not_run(marker, tmp_path, capsys):
    from ascend_adapt import cli

    run = f"__import__('os').mkdir({str(marker)!r})"
    code = f"import os\n__version__ = {run} or '0.19.8'\nversion = ''.join(map({run}, '1'))\n{run}\n"
    for name in ("deepspeed", "megatron", "patcher"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    (tmp_path / "deepspeed" / "version.py").write_text(code)
    assert cli.main(["status", "--upstream", str(tmp_path)]) in (0, 1)
    assert cli.main(["audit", "--static", str(tmp_path / "patcher"), "--upstream", str(tmp_path)]) == 0
    assert cli.main(["doctor", str(tmp_path / "patcher" / "__init__.py")]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_a_load_of_cuda_code_keeps_the_check(marker, tmp_path):
    from ascend_adapt_plugins.without_cuda import _loading_and_autocast

    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        _loading_and_autocast._load()(planted(tmp_path / "model.pt", "torch.save", marker))


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


def written_by_hugging_face(folder: Path) -> Path:
    """Write a small gpt2 with transformers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("value", [None, 0, -1, 2**62, 1.5, float("nan"), "8", [8], True], ids=str)
def test_no_value_of_a_configuration_is_a_traceback_or_fills_the_memory(value, tmp_path):
    folder = written_by_hugging_face(tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    of_numbers = () if isinstance(value, (int, float)) and value == value else ("layer_norm_epsilon",)
    for name in ("n_layer", "n_head", "n_embd", "vocab_size", "n_positions", *of_numbers):
        (folder / "config.json").write_text(json.dumps({**config, name: value}))
        with pytest.raises(CheckpointError, match=re.escape(str(folder))):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "..", ".", "a\0b", "x" * 10_000, 5, None], ids=lambda name: repr(name)[:20]
)
def test_a_weight_index_names_files_of_its_folder_only(name, tmp_path):
    folder = written_by_hugging_face(tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "5")
    (tmp_path / "secret").write_bytes((folder / "5").read_bytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name, "b": "5"}}))
    with pytest.raises(CheckpointError, match="which is not in this folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1, 10**9])
def test_a_false_length_of_a_safetensors_header_is_refused(length, tmp_path):
    folder = written_by_hugging_face(tmp_path / "hf")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(CheckpointError, match="model.safetensors: cannot be read"):
        open_checkpoint(folder)


def test_weights_that_are_not_floating_point_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    file = written_by_hugging_face(tmp_path / "hf") / "model.safetensors"
    save_file({name: tensor.int() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="its weights are int32, expected fp32, fp16 or bf16"):
        open_checkpoint(file.parent)


@pytest.mark.parametrize("named", ["../secret", "/etc", "..", "a\0b", "x" * 300, "9" * 5000], ids=lambda text: text[:9])
@pytest.mark.parametrize("tracker", ["latest", "latest_checkpointed_iteration.txt"])
def test_a_tracker_names_a_folder_beside_it_only(tracker, named, tmp_path):
    (tmp_path / "secret").mkdir()
    torch.save({"module": {}}, tmp_path / "secret" / "mp_rank_00_model_states.pt")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / tracker).write_text(named)
    with pytest.raises(CheckpointError, match=rf"{tracker}: names .*, expected the name of a folder next to it"):
        open_checkpoint(tmp_path / "saved")


def _first_place(metadata, **changes):
    import dataclasses

    for index, place in metadata.storage_data.items():
        metadata.storage_data[index] = dataclasses.replace(place, **changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda metadata: setattr(metadata.state_dict_metadata["a"], "size", torch.Size([2**50])), "bytes of it are"),
        (lambda metadata: setattr(metadata.state_dict_metadata["a"], "size", torch.Size([-5])), "bytes of it are"),
        (lambda metadata: setattr(metadata.state_dict_metadata["a"], "size", torch.Size([2])), "a chunk outside of"),
        (lambda metadata: _first_place(metadata, length=2**62), "outside of __0_0.distcp"),
        (lambda metadata: _first_place(metadata, length=-1), "the metadata places"),
        (lambda metadata: _first_place(metadata, offset=2**63), "the metadata places"),
        (lambda metadata: _first_place(metadata, offset="x"), "TypeError"),
        (lambda metadata: _first_place(metadata, relative_path="a\0b"), "expected files in its own folder"),
    ],
)
def test_sizes_that_metadata_states_are_checked_before_they_are_allocated(checkpoint, change, why):
    resaved(checkpoint, change)
    with pytest.raises(CheckpointError, match=why):
        CheckpointReader(checkpoint).read_metadata()


def test_sums_name_files_of_their_folder_only(tmp_path):
    from ascend_adapt.convert.output_folder import check_sums

    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  ../../etc/passwd\n")
    with pytest.raises(CheckpointError, match=r"lists '\.\./\.\./etc/passwd', expected only files in its folder"):
        check_sums(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_links_and_devices_of_an_archive_are_no_text(kind, tmp_path):
    from ascend_adapt.data.inputs import find_inputs
    from ascend_adapt.errors import DataError

    with tarfile.open(tmp_path / "text.jsonl.zst.tar", "w") as archive:
        member = tarfile.TarInfo("../member")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataError, match="contains no regular file"):
        find_inputs([str(tmp_path / "text.jsonl.zst.tar")])
