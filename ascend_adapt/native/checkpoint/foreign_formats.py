"""Detection of other trainers' checkpoint formats in a folder without a native checkpoint, from file names alone.

Sources of the names: NVIDIA/Megatron-LM@core_v0.9.0 megatron/training/checkpointing.py; DeepSpeed 0.14.5
runtime/engine.py (_get_ckpt_name, _get_zero_ckpt_name); THUDM/GLM utils.py (get_checkpoint_name); transformers 4.57
utils/__init__.py and trainer.py; Lightning 2.5 ModelCheckpoint; OneFlow-Benchmark@de4698a7
LanguageModeling/GPT/oneflow_gpt/snapshot.py and Oneflow-Inc/oneflow@v0.9.0 check_point_v2.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from ascend_adapt.native.checkpoint.folder import LATEST, PROGRESS, REMOVING, SAVING, SUMS
from ascend_adapt.native.checkpoint.save_lock import FILE as LOCK

# Ordered: a folder has the first format one of whose patterns matches.
FORMATS = {
    "a OneFlow snapshot": "iter*_snapshot snapshot_done */snapshot_done pickled_data */pickled_data */meta",
    "a Megatron-core distributed checkpoint": """
        iter_*/common.pt iter_*/.metadata iter_*/metadata.json release/common.pt common.pt weights/common.pt
        */weights/common.pt""",
    "a Megatron-LM checkpoint": "iter_*/mp_rank_* release/mp_rank_* mp_rank_*/model_optim_rng.pt",
    "a GLM checkpoint": "[0-9]*/mp_rank_*_model_states.pt",
    "a DeepSpeed checkpoint": """
        global_step* */mp_rank_*_model_states.pt */layer_*-model_*-model_states.pt */*zero_pp_rank_*_states.pt
        mp_rank_*_model_states.pt layer_*-model_*-model_states.pt *zero_pp_rank_*_states.pt latest_universal latest""",
    "a Hugging Face checkpoint": """
        *.safetensors *.safetensors.index.json pytorch_model*.bin pytorch_model.bin.index.json adapter_config.json
        tf_model.h5 flax_model.msgpack checkpoint-[0-9]* trainer_state.json""",
    "a PyTorch Lightning checkpoint": "*.ckpt */*.ckpt lightning_logs *.nemo",
    "a distributed checkpoint of PyTorch": ".metadata */.metadata *.distcp */*.distcp",
    "a PyTorch checkpoint": "*.pt *.pth */*.pt */*.pth",
}

# Files of a native run, its launcher and the file system that are not checkpoints; SAVING is left by a killed save.
OWN = f"""
    config.yaml .config.yaml.* metrics.jsonl metrics.part evaluations.jsonl evaluations.part tensorboard profile wandb
    samples.jsonl events.out.tfevents.* adapt-status.*.json rehearsal*.json beacons .waits.* failures job.json
    job.*.json rank-*.log rehearsal.html report.html report-compared.html kernel-choices container {LOCK} .{LATEST}.*
    {SAVING}* lost+found .nfs*""".split()


def foreign_format(folder: Path) -> str | None:
    """Return the checkpoint format of another trainer that a folder holds and the file that shows it, or None."""
    if any(folder.glob(f"*/{PROGRESS}")) or any(folder.glob(f"*/{SUMS}")):
        return None
    for name, patterns in FORMATS.items():
        for pattern in patterns.split():
            marks = (one.relative_to(folder) for one in folder.glob(pattern))
            if mark := min((one for one in marks if not one.parts[0].startswith((SAVING, REMOVING))), default=None):
                return f"{name} ({mark})"
    return None


def content(folder: Path, outputs: Collection[str | None] = ()) -> str | None:
    """Return what a folder without a native checkpoint holds, or None if it holds only logs of native runs.

    Folders without any file are ignored. ``outputs`` are other files or folders that this run writes.
    """
    if not folder.is_dir():
        return "is a file" if folder.exists() else None
    if (folder / PROGRESS).exists() or (folder / SUMS).exists():
        return f"is a single checkpoint of a native run, whose folder is {folder.absolute().parent}"
    if found := foreign_format(folder):
        return f"holds {found}"
    if removed := min(folder.glob(f"{REMOVING}*"), default=None):
        checkpoint = removed.name[len(REMOVING) :]
        return f"holds {removed.name}, whose removal was interrupted: rename it to {checkpoint} to use it"
    if incomplete := min(folder.glob("iter_*"), default=None):
        return f"holds {incomplete.name}, which has no {SUMS} and so is not a complete checkpoint"
    if renamed := min(folder.glob(f"[!.]*/{SUMS}"), default=None):
        return f"holds {renamed.parent.name}, a native checkpoint whose folder is not named iter_N"
    written = {Path(one).absolute() for one in outputs if one}
    others = sorted(
        one.name
        for one in folder.iterdir()
        if not any(fnmatch(one.name, pattern) for pattern in OWN)
        and not any(path.is_relative_to(one.absolute()) for path in written)
        and _has_files(one)
    )
    if LATEST in others:
        return f"holds {LATEST}, but not the checkpoint that it refers to"
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f"holds {', '.join(others[:3])}{more}, which a native run does not write" if others else None


def _has_files(path: Path) -> bool:
    return not path.is_dir() or any(files for _, _, files in os.walk(path))
