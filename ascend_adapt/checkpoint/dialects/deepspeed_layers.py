"""DeepSpeed pipeline checkpoints of GPT-NeoX (pipeline and sequential) and of Megatron-DeepSpeed.

A layer's number is its index in the pipeline's list, which includes layers without parameters: GPT-NeoX has the
embedding at 0 and blocks from 2 on, Megatron-DeepSpeed at 1 and from 3 on. A layer is identified by its keys. Without a
pipeline the keys are sequential.2.*; in ZeRO shards and universal checkpoints they are 2.* and tied_modules.embed.*.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/model/gpt2_model.py init_specs, megatron/checkpointing.py;
bigscience Megatron-DeepSpeed@8387ae17 megatron/model/gpt_model.py; DeepSpeed 0.19.8 runtime/pipe/module.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.dialects.deepspeed_files import layer_files, layout, load_weights, rank_files, step_folder
from ascend_adapt.checkpoint.source import Given, Source, is_buffer
from ascend_adapt.checkpoint.tensor_shards import Convention
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_dict
from ascend_adapt.checkpoint.torch_shards import Place, TorchShards, canonical_inside, canonical_name, open_shards
from ascend_adapt.checkpoint.writing import described, with_table
from ascend_adapt.config.model_config import Model
from ascend_adapt.errors import CheckpointError

# Key prefixes in a rank's weights: a sequential module, a pipeline layer, and the tied embedding.
_KEY = re.compile(r"(?:sequential\.)?(\d+)\.(.+)|tied_modules\.\w+\.(.+)")
_NEOX_FIRST_BLOCK = 2

_Layers = dict[int, dict[str, list[Place]]]
"""For each layer and key, the locations of its shards in order of tensor-parallel rank."""


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    folder = step_folder(path)
    if folder is None:
        return False
    return bool(layer_files(folder)) or any(
        _KEY.fullmatch(str(key)) for key in load_weights(rank_files(folder)[0], master=False)
    )


def open_source(path: Path, given: Given) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read, is incomplete, or has no configuration.
    """
    folder = step_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*_model_states.pt, expected a DeepSpeed checkpoint")
    layers, ranks = layer_files(folder), rank_files(folder)
    state = load_torch_dict(ranks[0])
    is_by_layer = bool(layers) and not given.master_weights
    is_universal = layout(folder).get("form") == "universal"
    arguments = attributes(state.get("args"))
    tensor = max(map(len, layers.values())) if layers else len(ranks)
    if is_universal and (tensor := arguments.get("tensor_model_parallel_size", tensor)) > 1:
        raise CheckpointError(
            f"{folder}: is a universal checkpoint of {tensor} tensor-parallel ranks, whose merging rules depend on its "
            "code base — convert the checkpoint that it was created from"
        )
    load = load_torch_dict if is_by_layer else partial(load_weights, master=given.master_weights)
    shards = TorchShards(tensor, load)
    found = _by_layer(layers, shards) if is_by_layer else _by_rank(ranks[: 1 if is_universal else None], shards)
    first_block = _add(shards, found)
    is_neox = first_block == _NEOX_FIRST_BLOCK
    version = "newest" if any("mlp.linear1." in key for keys in found.values() for key in keys) else None
    files = list(given.config) or sorted(folder.glob("configs/*.yml"))
    if given.assumed is not None and not (files if is_neox else "num_layers" in arguments):
        describe: Callable[[int], Model] = partial(with_table, given.assumed)
    elif is_neox:
        describe = partial(descriptions.of_neox, files, upstream=version, where=folder)
    else:
        describe = partial(descriptions.of_megatron, arguments, where=folder, is_core=False)

    iteration = state.get("iteration")
    return open_shards(
        shards,
        folder,
        lambda rows: described(state, rows) or describe(rows),
        lambda model: neox_convention(model) if is_neox else Convention(),
        dialect="neox" if is_neox else "megatron-deepspeed",
        iteration=iteration if isinstance(iteration, int) else None,
        layout={
            "form": "layers" if layers else "sequential",
            "tensor_parallel": tensor,
            "pipeline_parallel": max(len(ranks) // tensor, 1),
            **layout(folder),
        },
        arguments=arguments,
    )


def neox_convention(model: Model) -> Convention:
    """Return GPT-NeoX's convention, which depends on grouped-query attention and on the residual connections."""
    shared = model.num_query_groups != model.num_heads
    return Convention("block" if shared else "grouped", gate_first=False, sums_biases=model.parallel_residual)


def _by_layer(layers: Mapping[int, list[Path]], shards: TorchShards) -> _Layers:
    return {
        number: {key: [(path, (key,)) for path in paths] for key in _keys(shards.load(paths[0]))}
        for number, paths in layers.items()
    }


def _by_rank(ranks: Sequence[Path], shards: TorchShards) -> _Layers:
    """Return the layers in the ranks' files, which are in order of pipeline stage."""
    found: _Layers = {}
    tied: dict[str, list[Place]] = {}
    for begin in range(0, len(ranks), shards.ranks):
        paths = ranks[begin : begin + shards.ranks]
        for name in _keys(shards.load(paths[0])):
            match = _KEY.fullmatch(name)
            if match is None:
                raise CheckpointError(f"{paths[0]}: has {name}, expected the layers of GPT-NeoX or Megatron-DeepSpeed")
            places: list[Place] = [(path, (name,)) for path in paths]
            if match[1] is None:
                tied.setdefault(match[3], places)
            else:
                found.setdefault(int(match[1]), {})[match[2]] = places
    if tied:
        # The embedding is two layers before the first block.
        found[min(number for number, keys in found.items() if _is_block(keys)) - 2] = tied
    return dict(sorted(found.items()))


def _keys(content: Any) -> list[str]:
    return [str(key) for key in content if not is_buffer(str(key))] if isinstance(content, Mapping) else []


def _add(shards: TorchShards, layers: _Layers) -> int | None:
    """Add the locations of all tensors; return the number of the first block."""
    blocks = [number for number, keys in layers.items() if _is_block(keys)]
    for number, keys in layers.items():
        for key, places in keys.items():
            if number in blocks:
                name = f"layers.{blocks.index(number)}.{canonical_inside(key)}"
            else:
                # Megatron-DeepSpeed's final norm is a separate layer.
                name = canonical_name(f"norm.{key}" if key in ("weight", "bias") else key)
            for place in places:
                shards.add(name, *place)
    return min(blocks, default=None)


def _is_block(keys: Iterable[str]) -> bool:
    return any(key.startswith("input_layernorm.") for key in keys)
