"""`ascend-adapt convert` and `inspect` of checkpoints: verified, atomic, and never a file that runs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint.small_checkpoints import MODELS, new_folder, output_of, state_of
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.dialects import deepspeed_writing, megatron, native
from ascend_adapt.checkpoint.distributed import DistributedTensors
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.checkpoint.torch_files import load_torch_file
from ascend_adapt.cli import main
from ascend_adapt.convert import verification
from ascend_adapt.errors import CheckpointError

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def neox(tmp_path_factory):
    """A GPT-NeoX checkpoint on two tensor-parallel ranks."""
    folder = tmp_path_factory.mktemp("neox")
    model = MODELS["neox"]
    deepspeed_writing.write_neox(output_of(model, state_of(model), tensor=2), folder)
    return folder


def convert(source, output, *words):
    return main(["convert", "--input", str(source), "--output", str(output), *words])


def test_a_chain_of_conversions_ends_where_it_began(neox, tmp_path, capsys):
    steps = [
        ("hf",),
        ("native", "--vocab-size", "96", "--make-vocab-size-divisible-by", "32"),
        ("neox", "--tp", "4", "--pp", "2", "--upstream-version", "v2.0"),
        ("neox", "--tp", "2", "--vocab-size", "96", "--make-vocab-size-divisible-by", "48"),
    ]
    source, rows = neox, []
    for number, step in enumerate(steps):
        assert convert(source, tmp_path / str(number), "--to", *step) == 0
        assert "\nverified: largest relative difference of logits " in capsys.readouterr().out
        source = tmp_path / str(number)
        rows.append(open_checkpoint(source).model.padded_vocab_size)
    assert rows == [96, 96, 512, 96]
    before, after = open_checkpoint(neox), open_checkpoint(source)
    assert [
        one.name for one in before.parameters() if not torch.equal(before.read(one.name), after.read(one.name))
    ] == []


def test_stages_of_unequal_size(tmp_path, capsys):
    model = dataclasses.replace(MODELS["gpt2"], num_layers=3)
    deepspeed_writing.write_neox(output_of(model, state_of(model)), new_folder(tmp_path / "neox"))
    words = ("--to", "megatron", "--pp", "2", "--decoder-first-pipeline-num-layers")
    assert convert(tmp_path / "neox", tmp_path / "out", *words, "1") == 0
    held = [torch.load(path)["model"] for path in sorted((tmp_path / "out/release").glob("mp_rank_*/*.pt"))]
    assert [len(set(re.findall(r"layers\.\d+", str(one)))) for one in held] == [1, 2]
    assert convert(tmp_path / "neox", tmp_path / "none", *words, "3") == 2
    assert "--decoder-first-pipeline-num-layers 3: 0 of 3 layers remain" in capsys.readouterr().err


def test_a_target_that_cannot_express_the_model_is_refused(neox, tmp_path, capsys):
    assert convert(neox, tmp_path / "out", "--to", "megatron") == 1
    assert (
        "Megatron: cannot express parallel residual connections — convert to another dialect" in capsys.readouterr().err
    )
    assert os.listdir(tmp_path) == []


def test_transformers_verifies_a_hugging_face_result(neox, tmp_path, capsys):
    (neox / "tokenizer.json").write_text("{}")
    (neox / "config.json").write_text('{"eos_token_id": 7, "hidden_size": 1}')
    assert convert(neox, tmp_path / "hf", "--to", "hf", "--tokenizer", str(neox), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verification"]["implementations"] == ["the native model", "transformers"]
    assert printed["verification"]["passed"]
    assert printed["source"]["dialect"] == "neox"
    assert (tmp_path / "hf/tokenizer.json").exists()
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["eos_token_id"], config["hidden_size"]) == (7, 32)
    assert os.system(f"cd {tmp_path / 'hf'} && sha256sum --check --quiet --strict SHA256SUMS") == 0


def test_what_differs_keeps_a_name_that_says_so(neox, tmp_path, capsys, monkeypatch):
    """A fault in the writer: one bias is lost."""
    real = hugging_face.ARCHITECTURES["gpt_neox"].rules

    def faulty(model):
        for rule in real(model):
            if rule.ours == ("final_norm.bias",) and sys._getframe(1).f_code.co_name == "write":
                yield type(rule)(rule.ours, rule.theirs, rule.inward, lambda given: [torch.zeros_like(given[0])])
            else:
                yield rule

    monkeypatch.setattr(hugging_face.ARCHITECTURES["gpt_neox"], "rules", faulty)
    assert convert(neox, tmp_path / "hf", "--to", "hf") == 1
    printed = capsys.readouterr()
    assert "NOT VERIFIED: largest relative difference of logits" in printed.out
    assert f"{tmp_path / 'hf.unverified'}: logits differ from the source's" in printed.err
    assert os.listdir(tmp_path) == ["hf.unverified"]
    # And the next one does not write over it.
    assert convert(neox, tmp_path / "hf", "--to", "hf") == 1
    assert "hf.unverified: exists, expected a new or empty folder" in capsys.readouterr().err


@contextlib.contextmanager
def no_room(size):
    """A larger file cannot be written: the kernel says so, as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("target", ["hf", "native", "neox"])
def test_a_full_disk_is_an_error_that_leaves_nothing(neox, tmp_path, capsys, target):
    """Whichever writer finds it: torch's, to a file or mapped, and safetensors'."""
    with no_room(20_000):
        assert convert(neox, tmp_path / "out", "--to", target, "--no-verify") == 1
    assert "out: cannot be written (File too large) — free some space" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_others_can_read_what_was_converted_as_the_umask_says(neox, tmp_path):
    assert convert(neox, tmp_path / "hf", "--to", "hf", "--no-verify") == 0
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "hf").iterdir()} == {
        0o666 & (tmp_path / "hf").stat().st_mode
    }


def test_nan_is_not_verified():
    assert not verification.Verification(float("nan"), ("a", "b"), 1e-5).passed


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--to", "hf", "--tp", "2"), 2, "--tp, --pp: given for hf"),
        (("--to", "megatron-core", "--ckpt-format", "torch_dist", "--tp", "2"), 2, "--tp, --pp: given for torch_dist"),
        (("--to", "neox", "--decoder-last-pipeline-num-layers", "1"), 2, "last-pipeline-num-layers: given for neox"),
        (("--to", "megatron", "--ckpt-format", "torch"), 2, "--ckpt-format torch: given for --to megatron, expected"),
        (("--to", "neox", "--tp", "0", "--vocab-size", "0"), 2, "--tp 0, --vocab-size 0: expected at least 1"),
        (("--to", "hf", "--from", "megatron"), 1, "is a neox checkpoint, expected megatron — pass --from neox"),
        (("--to", "neox", "--tp", "3"), 1, "--tp 3: does not divide 4 heads, 4 key heads, .* — choose another size"),
        (
            ("--to", "neox", "--pp", "3"),
            1,
            "expected at least one layer for each of 3 stages|--pp 3: expected at most 2",
        ),
        (("--to", "hf", "--vocab-size", "1000"), 1, "--vocab-size: 1000, expected at most the 96 rows"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(neox, tmp_path, capsys, words, code, message):
    assert convert(neox, tmp_path / "new/out", *words) == code
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "new").exists() or os.listdir(tmp_path / "new") == []


def test_a_folder_without_a_checkpoint_is_named(tmp_path, capsys):
    assert convert(tmp_path, tmp_path / "out", "--to", "hf") == 1
    assert "contains no readable checkpoint, expected one of native, hf," in capsys.readouterr().err


def test_a_damaged_source_is_refused(neox, tmp_path, capsys):
    assert convert(neox, tmp_path / "native", "--to", "native") == 0
    part = tmp_path / "native/iter_0000000/__0_0.distcp"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert convert(tmp_path / "native", tmp_path / "out", "--to", "hf") == 1
    assert "__0_0.distcp: differs from its recorded checksum" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut", pickle.dumps([1], 2), None], ids=["empty", "cut", "pickle", "list"]
)
def test_a_file_that_is_no_checkpoint_is_no_traceback(neox, tmp_path, capsys, content):
    shutil.copytree(neox, tmp_path / "in")
    for name in ("layer_00-model_00-model_states.pt", "mp_rank_00_model_states.pt"):
        file = tmp_path / "in/global_step0" / name
        before = file.read_bytes()
        torch.save([1], file) if content is None else file.write_bytes(content)
        assert convert(tmp_path / "in", tmp_path / "out", "--to", "hf") == 1
        assert re.search(rf"{name}: (is|holds|cannot be read) .*expected", capsys.readouterr().err)
        file.write_bytes(before)


def test_missing_ranks_are_named(neox, tmp_path):
    shutil.copytree(neox, tmp_path / "part")
    for name in ("layer_02-model_01-model_states.pt", "layer_03-model_01-model_states.pt"):
        (tmp_path / "part/global_step0" / name).unlink()
    with pytest.raises(CheckpointError, match="is in 1 files, expected one for each of 2 tensor-parallel ranks"):
        open_checkpoint(tmp_path / "part")


def test_a_tracker_that_names_no_checkpoint_is_an_error_with_the_path_to_pass(neox, tmp_path, capsys):
    gpt2(megatron.write, new_folder(tmp_path / "megatron"))
    for iteration in ("iter_0000090", "iter_0000100"):
        shutil.copytree(tmp_path / "megatron/release", tmp_path / "megatron" / iteration)
    for tracker in (None, "80", "release"):
        (tmp_path / "megatron/latest_checkpointed_iteration.txt").unlink(missing_ok=True)
        if tracker is not None:
            (tmp_path / "megatron/latest_checkpointed_iteration.txt").write_text(tracker)
        expected = 0 if tracker == "release" else 1
        assert main(["inspect", str(tmp_path / "megatron")]) == expected
        message = (
            "has no latest_checkpointed_iteration.txt that names one of its checkpoints, expected the file to contain "
            f"an iteration — pass --input {tmp_path / 'megatron/iter_0000100'}"
        )
        assert (message in capsys.readouterr().err) == bool(expected)
    shutil.copytree(neox, tmp_path / "neox")
    (tmp_path / "neox/latest").write_text("global_step9")
    assert main(["inspect", str(tmp_path / "neox")]) == 1
    assert re.search(
        rf"names 'global_step9', .* — pass --input {tmp_path / 'neox/global_step0'}", capsys.readouterr().err
    )
    assert main(["inspect", str(tmp_path / "missing")]) == 1
    assert "missing: does not exist, expected a checkpoint's folder, or token files" in capsys.readouterr().err


def test_inspect_shows_what_a_checkpoint_is(neox, capsys):
    assert main(["inspect", str(neox), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["dialect"], shown["dtype"], shown["layout"]["tensor_parallel"]) == ("neox", "float32", 2)
    assert shown["parameters"] == sum(tensor.numel() for tensor in state_of(MODELS["neox"]).values())
    assert main(["inspect", str(neox)]) == 0
    assert "parallel_residual" in capsys.readouterr().out


class Payload:
    """Unpickled without care, makes the folder that it names."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def gpt2(writer, folder):
    writer(output_of(MODELS["gpt2"], state_of(MODELS["gpt2"])), folder)


def plant_file(name, writer, **how):
    """Write a checkpoint, and put the payload in the place of one of its files, or beside them."""

    def plant(folder, payload):
        gpt2(writer, folder)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"module": {"transformer.final_layernorm.weight": payload}}, folder / name, **how)

    return plant


def plant_metadata(folder, payload):
    gpt2(native.write, folder)
    (folder / "iter_0000000/.metadata").write_bytes(pickle.dumps(payload))


def plant_shard(folder, payload):
    """In a file of tensors, where the metadata says that each of them is; as long as the largest of them."""
    gpt2(native.write, folder)
    (folder / "iter_0000000/SHA256SUMS").unlink(missing_ok=True)
    step, shard = folder / "iter_0000000", io.BytesIO()
    torch.save([payload, "x" * 100_000], shard)
    (step / "__0_0.distcp").write_bytes(shard.getvalue())
    metadata = pickle.loads((step / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, len(shard.getvalue())
    (step / ".metadata").write_bytes(pickle.dumps(metadata))


def plant_entry_of_bytes(folder, payload):
    """Megatron-core's newer releases keep the arguments in such an entry."""
    plant_shard(folder, payload)
    step = folder / "iter_0000000"
    metadata = pickle.loads((step / ".metadata").read_bytes())
    metadata.state_dict_metadata["common_state/shard_0_1"] = BytesStorageMetadata()
    index = next(iter(metadata.storage_data))
    metadata.storage_data[MetadataIndex("common_state/shard_0_1")] = metadata.storage_data[index]
    (step / ".metadata").write_bytes(pickle.dumps(metadata))


def as_megatron_core(plant):
    def planted(folder, payload):
        plant(folder, payload)
        (folder / "iter_0000000/progress.json").unlink()
        (folder / "iter_0000000/metadata.json").write_text("{}")

    return planted


def plant_hugging_face(**how):
    def plant(folder, payload):
        gpt2(hugging_face.write, folder)
        (folder / "model.safetensors").unlink()
        torch.save({"a": payload}, folder / "pytorch_model.bin", **how)

    return plant


def plant_universal(folder, payload):
    """In the file of one parameter."""
    gpt2(hugging_face.write, folder)
    for name, tensor in hugging_face.StoredTensors(folder).items():
        file = new_folder(folder / "zero" / name) / "fp32.pt"
        torch.save({"param": payload if name == "transformer.ln_f.bias" else tensor}, file)
    (folder / "model.safetensors").unlink()
    torch.save({"module": None}, folder / "mp_rank_00_model_states.pt")


def plant_zero(name):
    """One of the two files of a rank with ZeRO-3."""

    def plant(folder, payload):
        files = {
            "zero_pp_rank_0_mp_rank_00_model_states.pt": {"param_shapes": [{"transformer.h.0.a": torch.Size([1])}]},
            "zero_pp_rank_0_mp_rank_00_optim_states.pt": {"optimizer_state_dict": {"partition_count": 1}},
        }
        for each, content in files.items():
            torch.save({**content, **({"more": payload} if each == name else {})}, folder / each)

    return plant


STEP, LEGACY = "global_step0", {"_use_new_zipfile_serialization": False}
PLANTS = {
    "native metadata": plant_metadata,
    "native shard": plant_shard,
    "Megatron-core metadata": as_megatron_core(plant_metadata),
    "Megatron-core arguments": as_megatron_core(plant_entry_of_bytes),
    "Megatron-core common": as_megatron_core(plant_file("iter_0000000/common.pt", native.write)),
    "neox layer": plant_file(f"{STEP}/layer_00-model_00-model_states.pt", deepspeed_writing.write_neox),
    "neox state": plant_file(f"{STEP}/mp_rank_00_model_states.pt", deepspeed_writing.write_neox),
    "megatron": plant_file("release/mp_rank_00/model_optim_rng.pt", megatron.write),
    "megatron, before torch 1.6": plant_file("release/mp_rank_00/model_optim_rng.pt", megatron.write, **LEGACY),
    "GLM": plant_file("5/mp_rank_00_model_states.pt", lambda output, folder: (folder / "latest").write_text("5")),
    "ZeRO model states": plant_zero("zero_pp_rank_0_mp_rank_00_model_states.pt"),
    "ZeRO optimizer states": plant_zero("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "universal": plant_universal,
    "Hugging Face": plant_hugging_face(),
    "Hugging Face, before torch 1.6": plant_hugging_face(**LEGACY),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_a_payload_in_any_file_is_refused(tmp_path, capsys, kind):
    PLANTS[kind](new_folder(tmp_path / "in"), Payload(tmp_path / "it-ran"))
    assert convert(tmp_path / "in", tmp_path / "out", "--to", "hf") == 1
    assert "names posix.mkdir, which can run code" in capsys.readouterr().err
    assert not (tmp_path / "it-ran").exists()
    assert not (tmp_path / "out").exists()


def test_a_payload_in_a_shard_of_megatron_core_is_refused(tmp_path):
    plant_shard(tmp_path, Payload(tmp_path / "it-ran"))
    tensors = DistributedTensors(tmp_path / "iter_0000000", of_megatron=True)
    with pytest.raises(CheckpointError, match=r"names posix\.mkdir, which can run code"):
        tensors("model.final_norm.weight")
    assert not (tmp_path / "it-ran").exists()


class OfNumpy:
    """Pickled as a call of a function that numpy has while it is saved."""

    def __reduce__(self):
        return _numpy_function, ("x",)


def test_a_stand_in_calls_nothing(tmp_path, monkeypatch):
    """A name of a known code base is allowed, and what it names is not called."""
    monkeypatch.setattr(_numpy_function, "__module__", "numpy.lib")
    monkeypatch.setattr("numpy.lib._numpy_function", _numpy_function, raising=False)
    torch.save({"a": OfNumpy()}, tmp_path / "file.pt")
    assert type(load_torch_file(tmp_path / "file.pt")["a"]).__name__ == "_numpy_function"


def _numpy_function(_):
    raise AssertionError("was called")


KILLS = int(os.environ.get("ASCEND_ADAPT_KILLS", "5"))

KILLED = """
import os, random, signal, sys, time
import ascend_adapt.convert.conversion  # once, before the forks
from ascend_adapt.cli import main
source, folder, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
dice, longest = random.Random(0), 0.0
for number in range(kills + 1):
    began, child = time.monotonic(), os.fork()
    if not child:
        os._exit(main(["convert", "--input", source, "--output", f"{folder}/{number}", "--to", "neox", "--tp", "2"]))
    if number:
        time.sleep(dice.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not number:
        assert status == 0
        longest = time.monotonic() - began
"""


def test_a_killed_conversion_leaves_nothing_that_looks_complete(neox, tmp_path):
    print(kill_at_random(neox, tmp_path, KILLS), "of", KILLS, "were complete")


def kill_at_random(source, folder, kills):
    """Kill conversions at random moments; return how many were complete under their names, with valid checksums."""
    command = [sys.executable, "-c", KILLED, str(source), str(folder), str(kills)]
    subprocess.run(command, check=True, capture_output=True, timeout=50 + 20 * kills)
    complete = [one for one in folder.iterdir() if not one.name.startswith(".")]
    for output in complete:
        assert os.system(f"cd {output} && sha256sum --check --quiet --strict SHA256SUMS") == 0
        assert open_checkpoint(output).read("final_norm.weight").shape == (32,)
    left = sorted(folder.glob(".converting-*"))
    assert main(["convert", "--input", str(source), "--output", str(folder / "1"), "--to", "neox"]) in (0, 1)
    assert not list(folder.glob(".converting-1-*")), left
    return len(complete) - 1
