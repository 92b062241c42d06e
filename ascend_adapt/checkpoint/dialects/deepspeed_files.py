"""Files of a DeepSpeed checkpoint and their weights: 16-bit weights, or fp32 master weights from ZeRO shards.

    latest, latest_universal                               trackers
    global_step100/mp_rank_00_model_states.pt              "module": the weights of a model-parallel rank, or None
    global_step100/layer_02-model_00-model_states.pt       with a pipeline: the weights of a layer
    global_step100/zero_pp_rank_0_mp_rank_00_*.pt          ZeRO shards (``zero_shards``); with ZeRO-3 the only weights
    global_step100_universal/zero/NAME/fp32.pt             universal: one file for each parameter

Sources: DeepSpeed 0.19.8 runtime/engine.py, checkpoint/ds_to_universal.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint.torch_files import load_torch_dict
from ascend_adapt.checkpoint.trackers import tracked_name
from ascend_adapt.checkpoint.zero_shards import MasterWeights, UniversalWeights
from ascend_adapt.errors import CheckpointError

LATEST, LATEST_UNIVERSAL = "latest", "latest_universal"
LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
RANK = re.compile(r"(?:zero_pp_rank_0_)?mp_rank_(\d+)_model_states\.pt")


def step_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the folder that its tracker names; None if neither is one.

    Raises:
        CheckpointError: the tracker names no checkpoint.
    """
    if rank_files(path):
        return path
    folders = sorted((one for one in path.glob("global_step*") if rank_files(one)), key=_step)
    for tracker in (path / LATEST, path / LATEST_UNIVERSAL):
        if tracker.is_file():
            named = path / tracked_name(tracker)
            if named != path and rank_files(named):
                return named
            step = f"pass --input {folders[-1]}" if folders else "correct it, or pass the checkpoint's folder"
            raise CheckpointError(
                f"{tracker}: names {named.name!r}, which contains no checkpoint, expected a folder next to it — {step}"
            )
    return folders[-1] if folders else None


def rank_files(folder: Path) -> list[Path]:
    """Return the file of model states of each model-parallel rank, in order."""
    found = {int(match[1]): path for path, match in _matching(folder, RANK)}
    return [found[rank] for rank in sorted(found)]


def layer_files(folder: Path) -> dict[int, list[Path]]:
    """Return the files of each layer, in order of tensor-parallel rank."""
    found: dict[int, list[Path]] = {}
    for path, match in _matching(folder, LAYER):
        found.setdefault(int(match[1]), []).append(path)
    return dict(sorted(found.items()))


def load_weights(path: Path, *, master: bool) -> Mapping[str, torch.Tensor]:
    """Return the weights of a model-parallel rank from ``path``, by upstream's names; empty if each layer has files.

    Raises:
        CheckpointError: ``master`` is set and there are no ZeRO shards, or a file is missing or cannot be read.
    """
    if (path.parent / UniversalWeights.FOLDER).is_dir():
        return UniversalWeights(path)
    if master or path.name.startswith("zero_"):
        return MasterWeights(path)
    content = load_torch_dict(path).get("module")
    return content if isinstance(content, Mapping) else {}


def layout(folder: Path) -> dict[str, Any]:
    """Return the facts about the files that ``inspect`` prints."""
    return {
        "files": len(list(folder.glob("*.pt"))),
        "zero_shards": len(list(folder.glob("*zero_pp_rank_*_optim_states.pt"))),
        **({"form": "universal"} if (folder / UniversalWeights.FOLDER).is_dir() else {}),
    }


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    found = [(path, pattern.fullmatch(path.name)) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [(path, match) for path, match in found if match is not None]


def _step(folder: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", folder.name)
    return (int(digits) if digits else -1, folder.name)
