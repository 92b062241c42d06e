"""A folder without a native checkpoint: recognised by its content, and never a reason to start from random weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from native.small_models import config

from ascend_adapt.config.train_config import Checkpoint
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.checkpoint.foreign_formats import content
from ascend_adapt.native.checkpoint.load import load
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

LATEST = "latest_checkpointed_iteration.txt"
CONTENTS = {
    "DeepSpeed": ("latest global_step4/mp_rank_00_model_states.pt", "holds a DeepSpeed checkpoint (global_step4)"),
    "DeepSpeed, its tracker alone": ("latest", "holds a DeepSpeed checkpoint (latest)"),
    "DeepSpeed, a tag of one's own": (
        "latest best/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "holds a DeepSpeed checkpoint (best/zero_pp_rank_0_mp_rank_00_optim_states.pt)",
    ),
    "bigscience": (f"{LATEST} latest global_step9/layer_01-model_00-model_states.pt", "holds a DeepSpeed checkpoint"),
    "Megatron-LM": (
        f"{LATEST} iter_0000010/mp_rank_00/model_optim_rng.pt",
        "holds a Megatron-LM checkpoint (iter_0000010/mp_rank_00)",
    ),
    "Megatron-LM, released": (f"{LATEST} release/mp_rank_00/model_optim_rng.pt", "holds a Megatron-LM checkpoint"),
    "torch_dist": (
        f"{LATEST} iter_0000010/common.pt iter_0000010/.metadata iter_0000010/__0_0.distcp",
        "holds a Megatron-core distributed checkpoint (iter_0000010/common.pt)",
    ),
    "GLM": (f"{LATEST} 1000/mp_rank_00_model_states.pt", "holds a GLM checkpoint (1000/mp_rank_00_model_states.pt)"),
    "Hugging Face": ("config.json model.safetensors", "holds a Hugging Face checkpoint (model.safetensors)"),
    "Hugging Face, older": ("config.json pytorch_model.bin", "holds a Hugging Face checkpoint (pytorch_model.bin)"),
    "Hugging Face Trainer": ("checkpoint-500/model.safetensors", "holds a Hugging Face checkpoint (checkpoint-500)"),
    "Lightning": ("epoch=1-step=10.ckpt", "holds a PyTorch Lightning checkpoint (epoch=1-step=10.ckpt)"),
    "DCP": ("step-10/.metadata step-10/__0_0.distcp", "holds a distributed checkpoint of PyTorch (step-10/.metadata)"),
    "nanoGPT": ("ckpt.pt", "holds a PyTorch checkpoint (ckpt.pt)"),
    # As oneflow_gpt.training saves, which is given the folder above; the rest is OneFlow's own flow.save.
    "oneflow_gpt": (
        "iter100_snapshot/model-wte/out iter100_snapshot/model-wte/meta iter100_snapshot/snapshot_done",
        "holds a OneFlow snapshot (iter100_snapshot)",
    ),
    "oneflow_gpt, incomplete": ("iter0_snapshot/model-wte/out", "holds a OneFlow snapshot (iter0_snapshot)"),
    "OneFlow, single client": ("snapshot_done model-wte/out", "holds a OneFlow snapshot (snapshot_done)"),
    "OneFlow, variables": ("model-wte/out model-wte/meta", "holds a OneFlow snapshot (model-wte/meta)"),
    "OneFlow, pickled": ("pickled_data model-wte/out", "holds a OneFlow snapshot (pickled_data)"),
    "native, without its sums": (
        "iter_0000004/progress.json iter_0000004/__0_0.distcp",
        "holds iter_0000004, which has no SHA256SUMS and so is not a complete checkpoint",
    ),
    "native, a folder too deep": (
        "progress.json SHA256SUMS",
        "is a single checkpoint of a native run, ",
    ),
    "native, a removal that was killed": (
        ".removing-iter_0000004/SHA256SUMS",
        "holds .removing-iter_0000004, whose removal was interrupted: rename it to iter_0000004 to use it",
    ),
    "native, renamed": ("best/SHA256SUMS", "holds best, a native checkpoint whose folder is not named iter_N"),
    "a tracker alone": (LATEST, f"holds {LATEST}, but not the checkpoint that it refers to"),
    "other files": ("b a e/f d c", "holds a, b, c and 2 more, which a native run does not write"),
}
LOGS = """config.yaml metrics.jsonl evaluations.jsonl tensorboard/events.out.tfevents.1 rank-0.log rank-12.log job.json
    job.1.json adapt-status.0.json beacons/1 failures/0.json kernel-choices/x .in-use .saving-iter_0000002/__0_0.distcp
    report.html profile/rank00000.json lost+found/x"""


def write(folder, files):
    for name in files.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("?")


@pytest.mark.parametrize(("files", "expected"), CONTENTS.values(), ids=CONTENTS)
def test_content_of_a_folder_is_named(tmp_path, files, expected):
    write(tmp_path, files)
    (tmp_path / "config.yaml").write_text("written by the run before it loads")
    assert (content(tmp_path) or "").startswith(expected)


def test_logs_of_native_runs_and_empty_folders_are_no_content(tmp_path):
    assert content(tmp_path / "missing") is None
    write(tmp_path, LOGS)
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert content(tmp_path) is None
    write(tmp_path, "board/events cache/order.npy")
    assert content(tmp_path, [str(tmp_path / "board"), None, str(tmp_path / "cache" / "deep")]) is None
    assert content(tmp_path) == "holds board, cache, which a native run does not write"


@pytest.fixture(scope="module")
def trainer():
    return Trainer(config(), meshes.single(torch.device("cpu")))


def loaded(trainer, **checkpoint):
    trainer.config = replace(trainer.config, checkpoint=Checkpoint(**checkpoint))
    return load(trainer)[1]


@pytest.mark.parametrize(("files", "expected"), CONTENTS.values(), ids=CONTENTS)
def test_what_is_not_understood_is_never_a_random_start(trainer, tmp_path, files, expected):
    write(tmp_path, files)
    for more in ({}, {"save": str(tmp_path)}, {"save": str(tmp_path), "finetune": True}):
        with pytest.raises(TrainingError) as error:
            loaded(trainer, load=str(tmp_path), **more)
        assert str(error.value).startswith(f"{tmp_path}: {expected}")
        assert ", expected a checkpoint of the native trainer — pass " in str(error.value)
        assert ("--save and --load" in str(error.value)) == bool(more)
    assert all((tmp_path / name).read_text() == "?" for name in files.split())


def test_only_a_folder_to_save_into_may_be_empty(trainer, tmp_path):
    folder = str(tmp_path / "new")
    with pytest.raises(TrainingError, match=f"{folder}: does not exist, expected a .* — correct --load, or remove it"):
        loaded(trainer, load=folder, save=str(tmp_path / "other"))
    write(tmp_path / "new", LOGS)
    with pytest.raises(TrainingError, match="has no checkpoint, expected a .* — correct --load, or remove"):
        loaded(trainer, load=folder)
    with pytest.raises(TrainingError, match="has no checkpoint, expected .* — correct --load$"):
        loaded(trainer, load=folder, save=folder, finetune=True)
    assert loaded(trainer, load=folder, save=folder) == [
        f"starting from random weights: {folder} has no checkpoint yet, and the run will be saved there"
    ]


def test_another_trainers_tracker_is_never_overwritten(trainer, tmp_path):
    write(tmp_path, "ckpt.pt")
    fresh = "starting from random weights: --load was not given"
    held = f"warning: {tmp_path} holds a PyTorch checkpoint (ckpt.pt); this run does not load it"
    assert loaded(trainer, save=str(tmp_path)) == [fresh, held]
    write(tmp_path, f"{LATEST} iter_0000010/mp_rank_00/x")
    with pytest.raises(TrainingError, match=rf"holds a Megatron-LM checkpoint .* {LATEST}, .* — choose another --save"):
        loaded(trainer, save=str(tmp_path))
