"""Checkpoints of DeepSpeed's pipeline: GPT-NeoX's, in both of its forms, and Megatron-DeepSpeed's.

    global_step100/layer_02-model_00-model_states.pt    one file for each layer and tensor-parallel rank
    global_step100/mp_rank_00_model_states.pt           without a pipeline: "module" has sequential.2.*
    global_step100/configs/*.yml                        GPT-NeoX's configuration

A layer's number is its place in the pipeline's list, which has layers without parameters: GPT-NeoX has the embedding
at 0 and blocks from 2 on, Megatron-DeepSpeed at 1 and from 3 on. What a layer is follows from its keys.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/model/gpt2_model.py init_specs, megatron/checkpointing.py;
bigscience Megatron-DeepSpeed@8387ae17 megatron/model/gpt_model.py; DeepSpeed 0.19.8 runtime/pipe/module.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.source import BUFFERS, Source
from ascend_adapt.checkpoint.tensor_shards import Convention
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_file
from ascend_adapt.checkpoint.torch_shards import TorchShards, canonical_inside, canonical_name, open_shards
from ascend_adapt.errors import CheckpointError
from ascend_adapt.native.config.model_config import Model

LATEST = "latest"
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_RANK = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_ZERO = "*zero_pp_rank_*"


def step_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the one that the tracker in it names; None if there is none."""
    if _files(path, _RANK):
        return path
    tracker = path / LATEST
    if tracker.is_file():
        named = path / tracker.read_text(encoding="utf-8", errors="replace").strip()
        if named.parent == path and _files(named, _RANK):
            return named
        raise CheckpointError(
            f"{tracker}: names {named.name!r}, which holds no checkpoint, expected a folder beside it — correct it, or "
            "give the folder of the checkpoint"
        )
    folders = sorted((one for one in path.glob("global_step*") if _files(one, _RANK)), key=_step)
    return folders[-1] if folders else None


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    folder = step_folder(path)
    if folder is None:
        return False
    if _files(folder, _LAYER):
        return True
    content = load_torch_file(folder / _files(folder, _RANK)[0])
    keys = content.get("module") if isinstance(content, dict) else None
    return isinstance(keys, Mapping) and any(str(key).startswith("sequential.") for key in keys)


def open_source(path: Path, config: Sequence[Path] = ()) -> Source:
    """Return the checkpoint; ``config`` replaces GPT-NeoX's configuration files.

    Raises:
        CheckpointError: it cannot be read, is incomplete, or has no configuration.
    """
    folder = step_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*_model_states.pt, expected a checkpoint of DeepSpeed")
    layers, ranks = _files(folder, _LAYER), _files(folder, _RANK)
    shards = TorchShards(len({_LAYER.fullmatch(one)[2] for one in layers}) if layers else len(ranks))  # type: ignore[index]
    state = load_torch_file(folder / ranks[0])
    keys = _by_layer(folder, layers) if layers else _by_sequence(folder, ranks, shards)
    is_neox = _add(shards, keys)
    version = "newest" if any(".linear1." in key for _, found in keys.values() for key in found) else None
    arguments = attributes(state.get("args"))
    files = list(config) or sorted(folder.glob("configs/*.yml"))
    if is_neox:
        describe = partial(descriptions.of_neox, files, version=version, where=folder)
    else:
        describe = partial(descriptions.of_megatron, arguments, where=folder, is_core=False)

    def convention(model: Model) -> Convention:
        if not is_neox:
            return Convention()
        shared = model.num_query_groups != model.num_heads
        return Convention("block" if shared else "grouped", gate_first=False, sums_biases=model.parallel_residual)

    iteration = state.get("iteration")
    return open_shards(
        shards,
        folder,
        describe,
        convention,
        dialect="neox" if is_neox else "megatron-deepspeed",
        iteration=iteration if isinstance(iteration, int) else None,
        layout={
            "form": "layers" if layers else "sequential",
            "tensor_parallel": shards.ranks,
            "pipeline_parallel": max(len(ranks) // shards.ranks, 1),
            "files": len(list(folder.glob("*.pt"))),
            "zero_shards": len(list(folder.glob(_ZERO))),
        },
        arguments=arguments,
    )


_Layers = Mapping[int, tuple[list[Path], list[str]]]
"""For each layer its file on each rank, and its keys."""


def _by_layer(folder: Path, names: Iterable[str]) -> _Layers:
    files: dict[int, list[Path]] = {}
    for name in names:
        number = int(_LAYER.fullmatch(name)[1])  # type: ignore[index]
        files.setdefault(number, []).append(folder / name)
    return {number: (paths, _keys(load_torch_file(paths[0]))) for number, paths in sorted(files.items())}


def _by_sequence(folder: Path, names: Sequence[str], shards: TorchShards) -> _Layers:
    paths = [folder / name for name in names]
    found: dict[int, tuple[list[Path], list[str]]] = {}
    for key in _keys(shards.load(paths[0])["module"]):
        words = key.split(".", 2)
        if words[0] != "sequential" or not words[1].isdecimal():
            raise CheckpointError(f"{paths[0]}: has {key}, expected sequential.N.* — it is not GPT-NeoX's")
        found.setdefault(int(words[1]), (paths, []))[1].append(words[2])
    return dict(sorted(found.items()))


def _keys(content: Any) -> list[str]:
    return [str(key) for key in content if not str(key).endswith(BUFFERS)] if isinstance(content, Mapping) else []


def _add(shards: TorchShards, layers: _Layers) -> bool:
    """Add the places of all tensors; return whether they are GPT-NeoX's."""
    block, first = 0, min(layers, default=0)
    for number, (paths, keys) in layers.items():
        is_block = any(key.startswith("input_layernorm.") for key in keys)
        for key in keys:
            if is_block:
                name = f"layers.{block}.{canonical_inside(key)}"
            else:
                # Megatron-DeepSpeed's last norm is a layer by itself.
                name = canonical_name(f"norm.{key}" if key in ("weight", "bias") else key)
            for path in paths:
                shards.add(name, path, _place(number, key, path))
        block += is_block
    return first == 0


def _place(number: int, key: str, path: Path) -> tuple[str, ...]:
    return (key,) if _LAYER.fullmatch(path.name) else ("module", f"sequential.{number}.{key}")


def _files(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(one.name for one in folder.iterdir() if pattern.fullmatch(one.name))


def _step(folder: Path) -> tuple[int, str]:
    digits = re.sub(r"\D", "", folder.name)
    return (int(digits) if digits else -1, folder.name)
