"""Megatron-core's distributed checkpoints (--ckpt-format torch_dist), independent of the parallel sizes.

    latest_checkpointed_iteration.txt
    iter_0000100/.metadata, *.distcp, metadata.json      torch.distributed.checkpoint
    iter_0000100/common.pt                               arguments, iteration; newer releases: an entry common_state

A parameter of all blocks is one tensor [layers, ...]. Names are Transformer Engine's, whichever layer implementation
saved them. Query, key and value are grouped; a gated MLP's tensor has all gate rows first.

Sources: Megatron-LM@core_v0.12.0 and @5be96267 megatron/core/dist_checkpointing, megatron/core/transformer/mlp.py.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.canonical import HEAD, WORDS, parameters
from ascend_adapt.checkpoint.dialects import megatron
from ascend_adapt.checkpoint.distributed import METADATA, DistributedTensors, Entry, write_distributed
from ascend_adapt.checkpoint.source import Given, Rule, RuleReader, Source, Tensors, refuse_leftover
from ascend_adapt.checkpoint.tensor_shards import Convention, Sharding, units
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_dict
from ascend_adapt.checkpoint.torch_shards import canonical_inside, canonical_name
from ascend_adapt.checkpoint.writing import Output, described, description, save
from ascend_adapt.errors import CheckpointError

COMMON, KIND = "common.pt", "metadata.json"
_FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
_LAYERS = "decoder.layers"
_BLOCK = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.*)")


def iteration_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the folder that its tracker names; None if neither is one."""
    return megatron.tracked_folder(path, _is_one)


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    return iteration_folder(path) is not None


def open_source(path: Path, _given: Given) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read, is incomplete, or has an architecture that is not supported.
    """
    folder = iteration_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no {METADATA} and {KIND}, expected a Megatron-core checkpoint")
    stored = DistributedTensors(folder, of_megatron=True)
    common = _common(folder, stored)
    arguments = attributes(common.get("args"))
    places = _places(stored)
    if WORDS not in places:
        raise CheckpointError(f"{folder}: has no word embeddings, expected the complete checkpoint of a GPT model")
    words = stored.tensors[places[WORDS][0]]
    model = described(common, words.size[0]) or descriptions.of_megatron(arguments, words.size[0], folder, is_core=True)
    sharding = Sharding(model, Convention(), 1)
    rules = [sharding.rule(names, names[-1]) for names in units(model)]
    refuse_leftover(places, rules, folder, [HEAD] if model.tied_embeddings else [])

    def fetch(rule: Rule) -> Tensors:
        return [stored(*places[rule.theirs[0]])]

    iteration = common.get("iteration")
    sizes = {
        name: arguments.get(f"{name[:-9]}_model_parallel_size") for name in ("tensor_parallel", "pipeline_parallel")
    }
    return Source(
        "megatron-core",
        folder,
        model,
        RuleReader(rules, fetch, parameters(model), folder),
        words.properties.dtype,
        iteration=iteration if isinstance(iteration, int) else None,
        layout={"form": "torch_dist", **sizes, "files": len(list(folder.glob("*.distcp")))},
        arguments=arguments,
    )


def write(output: Output, folder: Path) -> None:
    """Write weights as a "release" into the empty ``folder``; upstream loads them at iteration 0, without optimizer.

    Raises:
        CheckpointError: Megatron cannot express the model.
    """
    model = output.model
    megatron.check_model(model, "Megatron", needs_equal_biases=False)
    target = folder / "release"
    target.mkdir()
    write_distributed(target, _entries(output))
    arguments = argparse.Namespace(
        # Upstream compares these with its own to decide whether to load RNG states, which this checkpoint does not
        # have.
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        no_save_optim=True,
        no_save_rng=True,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_heads,
        max_position_embeddings=model.max_positions,
        padded_vocab_size=model.padded_vocab_size,
    )
    common = {"args": arguments, "checkpoint_version": 3.0, "iteration": 0, **description(model)}
    save(common, target / COMMON)
    (target / KIND).write_text(json.dumps(_FORMAT), encoding="utf-8")
    (folder / megatron.LATEST).write_text("release", encoding="utf-8")


def _entries(output: Output) -> Iterator[Entry]:
    count = output.model.num_layers
    sharding = Sharding(output.model, Convention(), 1)
    for ours in units(output.model):
        [tensor] = sharding.cut(ours, [output.read(name) for name in ours])
        output.done(tensor.nbytes)
        key = megatron.key_of(ours[-1], megatron.TRANSFORMER_ENGINE)
        block = _BLOCK.fullmatch(key)
        yield Entry(f"{_LAYERS}.{block[2]}", tensor, (int(block[1]), count)) if block else Entry(key, tensor)
    for number in range(count):
        for layer in (*megatron.LINEAR_LAYERS, "self_attention.core_attention"):
            yield Entry(f"{_LAYERS}.{layer}.{megatron.EXTRA_STATE}/shard_{number}_{count}", [None])
    yield Entry(f"decoder.final_layernorm.{megatron.EXTRA_STATE}/shard_0_1", [None])


def _is_one(folder: Path) -> bool:
    return (folder / METADATA).is_file() and (folder / KIND).is_file()


def _common(folder: Path, stored: DistributedTensors) -> dict[str, Any]:
    if (folder / COMMON).is_file():
        return load_torch_dict(folder / COMMON)
    entry = next((name for name in stored.others if name.startswith("common_state/")), None)
    content = stored.bytes_of(entry) if entry else []
    return dict(content[0]) if isinstance(content, list) and content and isinstance(content[0], dict) else {}


def _places(stored: DistributedTensors) -> dict[str, tuple[str, int | None]]:
    """Return, for each canonical name, the tensor that contains the parameter, and its index in the tensor."""
    places: dict[str, tuple[str, int | None]] = {}
    for name, entry in stored.tensors.items():
        if name.startswith(("optimizer.", "chained_")):
            continue
        block = _BLOCK.fullmatch(name)
        if block is None:
            places[canonical_name(name)] = (name, None)
        elif block[1] is not None:
            places[f"layers.{block[1]}.{canonical_inside(block[2])}"] = (name, None)
        else:
            for number in range(entry.size[0]):
                places[f"layers.{number}.{canonical_inside(block[2])}"] = (name, number)
    return places
