"""Hugging Face models saved by DeepSpeed: by transformers' Trainer with ZeRO, or by an engine's save_checkpoint.

config.json                                            next to global_step100, or from --config
global_step100/mp_rank_00_model_states.pt              "module" has the parameters, except with ZeRO-3
"""

from __future__ import annotations

from pathlib import Path

from ascend_adapt.checkpoint.dialects.deepspeed_files import layout, load_weights, rank_files, step_folder
from ascend_adapt.checkpoint.hugging_face import files as hugging_face
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.torch_files import load_torch_dict
from ascend_adapt.errors import CheckpointError


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    folder = step_folder(path)
    return folder is not None and any(
        str(key).startswith(hugging_face.PREFIXES) for key in load_weights(rank_files(folder)[0], master=False)
    )


def open_source(path: Path, given: Given) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read, or has no config.json.
    """
    folder = step_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*_model_states.pt, expected a DeepSpeed checkpoint")
    ranks = rank_files(folder)
    if len(ranks) > 1:
        raise CheckpointError(
            f"{folder}: has {len(ranks)} model-parallel ranks, expected one for a Hugging Face model — gather it with "
            "upstream's own tools"
        )
    configs = [*given.config, folder / hugging_face.CONFIG, folder.parent / hugging_face.CONFIG]
    config = next((one for one in configs if one.is_file()), None)
    if config is None:
        raise CheckpointError(
            f"{folder}: has no {hugging_face.CONFIG} next to it, expected the file of the model — pass it with --config"
        )
    weights = load_weights(ranks[0], master=given.master_weights)
    state = load_torch_dict(ranks[0])
    return hugging_face.source_of(
        config,
        weights,
        dialect="deepspeed",
        path=folder,
        iteration=state.get("global_steps"),
        layout=layout(folder),
    )
