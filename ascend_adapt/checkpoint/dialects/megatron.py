"""Megatron's torch.save checkpoints: Megatron-LM from v1 on, bigscience without DeepSpeed, and --ckpt-format torch.

    latest_checkpointed_iteration.txt                        the iteration, or "release"
    iter_0000100/mp_rank_00/model_optim_rng.pt               one file for each tensor-parallel rank
    iter_0000100/mp_rank_00_001/model_optim_rng.pt           and pipeline rank

Blocks are numbered within a stage; with virtual stages a file has model0, model1, ... If embeddings are tied, the last
stage has a copy, which is not read.

Sources: NVIDIA/Megatron-LM@v2.5 megatron/checkpointing.py, @core_v0.12.0 megatron/training/checkpointing.py; bigscience
Megatron-DeepSpeed@8387ae17 megatron/checkpointing.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.canonical import WORDS, local_name
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.tensor_shards import Convention, Sharding, units
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_dict
from ascend_adapt.checkpoint.torch_shards import TorchShards, canonical_name, flattened, open_shards
from ascend_adapt.checkpoint.trackers import tracked_name
from ascend_adapt.checkpoint.writing import Output, described, description, mapped_file, placeholder, with_table
from ascend_adapt.config.model_config import Model
from ascend_adapt.errors import CheckpointError
from ascend_adapt.whole_numbers import whole_number

LATEST, FILE = "latest_checkpointed_iteration.txt", "model_optim_rng.pt"
_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
_ORDERS = {0: "block", 1.0: "interleaved"}


def iteration_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the folder that its tracker names; None if neither is one."""
    return tracked_folder(path, lambda folder: bool(_ranks(folder)))


def tracked_folder(path: Path, is_one: Callable[[Path], bool]) -> Path | None:
    """Return ``path`` if it is a checkpoint, or the folder that its tracker names; None if neither is."""
    if is_one(path):
        return path
    tracker = path / LATEST
    if not tracker.is_file():
        return None
    named = tracked_name(tracker)
    iteration = whole_number(named)
    folder = path / ("release" if iteration is None else f"iter_{iteration:07d}")
    return folder if is_one(folder) else None


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    return iteration_folder(path) is not None


def untracked_folder(path: Path) -> Path | None:
    """Return the newest Megatron checkpoint in a folder whose tracker is missing or names none of its checkpoints."""
    found = [one.parent for name in (f"mp_rank_*/{FILE}", ".metadata") for one in path.glob(f"iter_*/{name}")]
    return max((one.parent if one.name.startswith("mp_rank_") else one for one in found), default=None)


def open_source(path: Path, given: Given) -> Source:
    """Return the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read, is incomplete, or has an architecture that is not supported.
    """
    folder = iteration_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*/{FILE}, expected a Megatron checkpoint")
    files = _ranks(folder)
    tensor, pipeline = (1 + max(rank[axis] for rank in files) for axis in (0, 1))
    missing = [one for one in ((t, p) for t in range(tensor) for p in range(pipeline)) if one not in files]
    if missing:
        raise CheckpointError(
            f"{folder}: lacks the file of tensor-parallel rank {missing[0][0]}, pipeline rank "
            f"{missing[0][1]}, expected "
            f"all {tensor} x {pipeline} — copy all of its files"
        )
    shards = TorchShards(tensor)
    state = load_torch_dict(files[0, 0])
    arguments = attributes(state.get("args"))
    version = state.get("checkpoint_version", 0)
    _add(shards, files, tensor, pipeline)
    is_core = any("linear_qkv" in keys[-1] for places in shards.places.values() for _, keys in places[:1])

    def describe(rows: int) -> Model:
        if (model := described(state, rows)) is not None:
            return model
        if given.assumed is not None and "num_layers" not in arguments:
            return with_table(given.assumed, rows)
        return descriptions.of_megatron(arguments, rows, folder, is_core=is_core)

    iteration = state.get("iteration")
    return open_shards(
        shards,
        folder,
        describe,
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
    """Add the locations of all tensors, stage by stage in model order."""
    chunks = len(_models(load_torch_dict(files[0, 0])))
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
                    # The last stage's copy of tied embeddings.
                    is_first = chunk == stage == 0
                    if name.startswith("embedding.") and not is_first:
                        continue
                    if name.startswith("layers."):
                        blocks = max(blocks, int(name.split(".")[1]) + 1 - before)
                    shards.add(name, path, (models[chunk][0], *keys))
            before += blocks


def _models(state: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the model chunks of a file with their keys: one, or one for each virtual stage."""
    if not isinstance(state, Mapping):
        return []
    names = (
        ["model"]
        if "model" in state
        else sorted((key for key in state if re.fullmatch(r"model\d+", str(key))), key=lambda key: int(key[5:]))
    )
    return [(name, state[name]) for name in names]


def _ranks(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the files by tensor-parallel and pipeline rank."""
    found = {}
    for path in folder.glob(f"mp_rank_*/{FILE}") if folder.is_dir() else ():
        if rank := _RANK.fullmatch(path.parent.name):
            found[int(rank[1]), int(rank[2] or 0)] = path
    return found


# Prefixes of upstream's names for each canonical module; "layers" is the prefix of a block.
CLASSIC = {
    "layers": "language_model.encoder.layers.",
    "input_norm": "input_layernorm.",
    "post_attention_norm": "post_attention_layernorm.",
    "attention.query_key_value": "self_attention.query_key_value.",
    "attention.dense": "self_attention.dense.",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h.",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h.",
    "embedding.words": "language_model.embedding.word_embeddings.",
    "embedding.positions": "language_model.embedding.position_embeddings.",
    "final_norm": "language_model.encoder.final_layernorm.",
    "head": "language_model.output_layer.",
}
# Megatron-core with --transformer-impl local.
LOCAL = {
    "layers": "decoder.layers.",
    "input_norm": "input_layernorm.",
    "post_attention_norm": "pre_mlp_layernorm.",
    "attention.query_key_value": "self_attention.linear_qkv.",
    "attention.dense": "self_attention.linear_proj.",
    "mlp.dense_h_to_4h": "mlp.linear_fc1.",
    "mlp.dense_4h_to_h": "mlp.linear_fc2.",
    "embedding.words": "embedding.word_embeddings.",
    "embedding.positions": "embedding.position_embeddings.",
    "final_norm": "decoder.final_layernorm.",
    "head": "output_layer.",
}
# Megatron-core with --transformer-impl transformer_engine, whose linear layers contain the norm before them.
TRANSFORMER_ENGINE = {
    **LOCAL,
    "input_norm": "self_attention.linear_qkv.layer_norm_",
    "post_attention_norm": "mlp.linear_fc1.layer_norm_",
}
EXTRA_STATE = "_extra_state"
"""Key of FP8 scales. Upstream's layers require the key when they load, and accept None as its value."""
LINEAR_LAYERS = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")


def write(output: Output, folder: Path, *, names: Mapping[str, str] = CLASSIC) -> None:
    """Write weights as a "release" into the empty ``folder``; upstream loads them at iteration 0, without optimizer.

    ``names``: CLASSIC, or LOCAL or TRANSFORMER_ENGINE for Megatron-core with --ckpt-format torch.

    Raises:
        CheckpointError: Megatron cannot express the model.
    """
    model, core = output.model, names is not CLASSIC
    check_model(model, "Megatron", needs_equal_biases=not core)
    output.check_sizes()
    sharding = Sharding(model, Convention(), output.tensor)
    stages = output.stages()
    for stage, blocks in enumerate(stages):
        is_first, is_last = stage == 0, stage == len(stages) - 1
        keys: dict[str, tuple[str, ...]] = {}
        for ours in units(model):
            block, local = local_name(ours[-1])
            if block in blocks if block is not None else is_first if local.startswith("embedding.") else is_last:
                keys[key_of(ours[-1], names, blocks.start)] = ours
        if is_last and not is_first and model.tied_embeddings:
            keys["output_layer.weight" if core else "word_embeddings_for_head.weight"] = (WORDS,)
        suffix = f"_{stage:03d}" if len(stages) > 1 else ""
        extra = _extra_states(keys) if names is TRANSFORMER_ENGINE else {}
        ranks = []
        for rank in range(output.tensor):
            tensors = {key: placeholder(sharding.shapes(ours)[rank], output.dtype) for key, ours in keys.items()}
            content = {**tensors, **extra} if core else _nested(tensors)
            state = {"checkpoint_version": 3.0, "iteration": 0, "model": content}
            path = folder / "release" / f"mp_rank_{rank:02d}{suffix}" / FILE
            written = mapped_file({**state, **description(model)}, path)["model"]
            ranks.append({".".join(place): _at(written, place) for place in flattened(written)})
        for key, ours in keys.items():
            pieces = sharding.cut(ours, [output.read(name) for name in ours])
            for tensors, piece in zip(ranks, pieces, strict=True):
                tensors[key].copy_(piece)
                output.done(piece.nbytes)
    (folder / LATEST).write_text("release", encoding="utf-8")


def check_model(model: Model, name: str, *, needs_equal_biases: bool = True, needs_tied: bool = False) -> None:
    """Check that the code base ``name`` can express a model.

    Raises:
        CheckpointError: the code base cannot express the model; the message lists the reasons.
    """
    problems = []
    if model.parallel_residual:
        problems.append("parallel residual connections")
    if model.rms_eps_on_root:
        problems.append("RMSNorm with epsilon outside the square root")
    if model.mlp_bias != model.output_bias or (needs_equal_biases and model.attention_bias != model.output_bias):
        problems.append("biases in only some of the layers")
    if needs_tied and not model.tied_embeddings:
        problems.append("an untied output head")
    if problems:
        raise CheckpointError(f"{name}: cannot express {'; '.join(problems)} — convert to another dialect")


def key_of(name: str, names: Mapping[str, str], first_block: int = 0) -> str:
    """Return upstream's name of a parameter; ``names`` is one of the tables in this module."""
    block, local = local_name(name)
    layer, _, kind = local.rpartition(".")
    inside = "" if block is None else f"{names['layers']}{block - first_block}."
    return f"{inside}{names[layer]}{kind}"


def _extra_states(keys: Iterable[str]) -> dict[str, None]:
    """Return the extra states of the Transformer Engine layers among these keys."""
    layers = {key.rpartition(".")[0] for key in keys}
    return {f"{one}.{EXTRA_STATE}": None for one in layers if one.endswith((*LINEAR_LAYERS, "final_layernorm"))}


def _nested(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return Megatron's nested dicts: one dict for each module, with the blocks flat inside the encoder."""
    nested: dict[str, Any] = {}
    for name, tensor in tensors.items():
        words = name.split(".")
        depth = {"embedding": 3, "encoder": 2, "output_layer": 2}.get(words[1], 1)
        inner = nested
        for word in words[:depth]:
            inner = inner.setdefault(word, {})
        inner[".".join(words[depth:])] = tensor
    return nested


def _at(content: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        content = content[key]
    return content
