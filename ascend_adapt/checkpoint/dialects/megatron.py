"""Megatron's checkpoints of torch.save: Megatron-LM from v1 on, bigscience without DeepSpeed, and --ckpt-format torch.

    latest_checkpointed_iteration.txt                        the iteration, or "release"
    iter_0000100/mp_rank_00/model_optim_rng.pt               one file for each tensor-parallel rank
    iter_0000100/mp_rank_00_001/model_optim_rng.pt           and pipeline rank

Blocks are numbered within a stage; with virtual stages a file has model0, model1, ... Where embedding and head are
tied the last stage has a copy, which is not read.

Sources: NVIDIA/Megatron-LM@v2.5 megatron/checkpointing.py, @core_v0.12.0 megatron/training/checkpointing.py; bigscience
Megatron-DeepSpeed@8387ae17 megatron/checkpointing.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.source import Source
from ascend_adapt.checkpoint.tensor_shards import Convention
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_file
from ascend_adapt.checkpoint.torch_shards import TorchShards, canonical_name, flattened, open_shards
from ascend_adapt.errors import CheckpointError

LATEST, FILE = "latest_checkpointed_iteration.txt", "model_optim_rng.pt"
_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
_ORDERS = {0: "block", 1.0: "interleaved"}


def iteration_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the one that the tracker in it names; None if there is none."""
    if _ranks(path):
        return path
    tracker = path / LATEST
    if not tracker.is_file():
        return None
    named = tracker.read_text(encoding="utf-8", errors="replace").strip()
    folder = path / (f"iter_{int(named):07d}" if named.isdecimal() else "release")
    return folder if _ranks(folder) else None


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    return iteration_folder(path) is not None


def open_source(path: Path) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: it cannot be read, is incomplete, or does arithmetic that the native model lacks.
    """
    folder = iteration_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*/{FILE}, expected a checkpoint of Megatron")
    files = _ranks(folder)
    tensor, pipeline = (1 + max(rank[axis] for rank in files) for axis in (0, 1))
    missing = [one for one in ((t, p) for t in range(tensor) for p in range(pipeline)) if one not in files]
    if missing:
        raise CheckpointError(
            f"{folder}: has no file of tensor-parallel rank {missing[0][0]}, pipeline rank {missing[0][1]}, expected "
            f"all of {tensor} x {pipeline} — copy all of its files"
        )
    shards = TorchShards(tensor)
    state = load_torch_file(files[0, 0])
    arguments = attributes(state.get("args"))
    version = state.get("checkpoint_version", 0)
    _add(shards, files, tensor, pipeline)
    is_core = any(
        "linear_qkv" in keys[-1] for places in shards.places.values() for _, keys in places[:1]
    )
    iteration = state.get("iteration")
    return open_shards(
        shards,
        folder,
        lambda rows: descriptions.of_megatron(arguments, rows, folder, is_core=is_core),
        lambda _: Convention(_ORDERS.get(version, "grouped")),
        dialect="megatron-core" if is_core else "megatron",
        iteration=iteration if isinstance(iteration, int) else None,
        layout={
            "form": "torch",
            "checkpoint_version": version,
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "virtual_stages": len(_models(state)),
            "files": len(files),
        },
        arguments=arguments,
    )


def _add(shards: TorchShards, files: Mapping[tuple[int, int], Path], tensor: int, pipeline: int) -> None:
    """Add the places of all tensors, stage after stage in model order."""
    chunks = len(_models(load_torch_file(files[0, 0])))
    before = 0
    for chunk in range(chunks):
        for stage in range(pipeline):
            blocks = 0
            for rank in range(tensor):
                path = files[rank, stage]
                models = _models(shards.load(path))
                blocks = 0
                for keys in flattened(models[chunk][1]):
                    key = ".".join(keys)
                    if "word_embeddings_for_head" in key:
                        continue
                    name = canonical_name(key, before)
                    # What the last stage has again where it is tied.
                    is_first = chunk == stage == 0
                    if name.startswith("embedding.") and not is_first:
                        continue
                    if name.startswith("layers."):
                        blocks = max(blocks, int(name.split(".")[1]) + 1 - before)
                    shards.add(name, path, (models[chunk][0], *keys))
            before += blocks


def _models(state: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the models of a file with their keys: one, or one for each virtual stage."""
    if not isinstance(state, Mapping):
        return []
    names = ["model"] if "model" in state else sorted(
        (key for key in state if re.fullmatch(r"model\d+", str(key))), key=lambda key: int(key[5:])
    )
    return [(name, state[name]) for name in names]


def _ranks(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the files by tensor-parallel and pipeline rank."""
    found = {}
    for path in folder.glob(f"mp_rank_*/{FILE}") if folder.is_dir() else ():
        if rank := _RANK.fullmatch(path.parent.name):
            found[int(rank[1]), int(rank[2] or 0)] = path
    return found
