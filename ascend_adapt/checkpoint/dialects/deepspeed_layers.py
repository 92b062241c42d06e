"""DeepSpeed pipeline checkpoints: those of GPT-NeoX, in both forms, and of Megatron-DeepSpeed.

    global_step100/layer_02-model_00-model_states.pt    one file for each layer and tensor-parallel rank
    global_step100/mp_rank_00_model_states.pt           without a pipeline: "module" has sequential.2.*
    global_step100/configs/*.yml                        GPT-NeoX's configuration

A layer's number is its place in the pipeline's list, which has layers without parameters: GPT-NeoX has the embedding
at 0 and blocks from 2 on, Megatron-DeepSpeed at 1 and from 3 on. What a layer is follows from its keys.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/model/gpt2_model.py init_specs, megatron/checkpointing.py;
bigscience Megatron-DeepSpeed@8387ae17 megatron/model/gpt_model.py; DeepSpeed 0.19.8 runtime/pipe/module.py.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint import descriptions
from ascend_adapt.checkpoint.canonical import HEAD, POSITIONS, WORDS, local_name
from ascend_adapt.checkpoint.source import Source, is_buffer
from ascend_adapt.checkpoint.tensor_shards import Convention, Sharding, units
from ascend_adapt.checkpoint.torch_files import attributes, load_torch_dict
from ascend_adapt.checkpoint.torch_shards import TorchShards, canonical_inside, canonical_name, open_shards
from ascend_adapt.checkpoint.writing import Output, described, description, owned, save, with_table
from ascend_adapt.errors import CheckpointError
from ascend_adapt.native.config.model_config import Model

LATEST = "latest"
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
_RANK = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_ZERO = "*zero_pp_rank_*"


def step_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the one that its tracker names; None if there is none."""
    if _files(path, _RANK):
        return path
    tracker = path / LATEST
    if tracker.is_file():
        named = path / tracker.read_text(encoding="utf-8", errors="replace").strip()
        if named.parent == path and _files(named, _RANK):
            return named
        raise CheckpointError(
            f"{tracker}: names {named.name!r}, which contains no checkpoint, expected a folder next to it "
            "— correct it, or "
            "pass the checkpoint's folder"
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
    content = load_torch_dict(folder / _files(folder, _RANK)[0])
    keys = content.get("module")
    return isinstance(keys, Mapping) and any(str(key).startswith("sequential.") for key in keys)


def open_source(path: Path, config: Sequence[Path] = (), assumed: Model | None = None) -> Source:
    """Return the checkpoint; ``config`` replaces GPT-NeoX's configuration files.

    ``assumed`` is its model if its files do not describe it.

    Raises:
        CheckpointError: it cannot be read, is incomplete, or has no configuration.
    """
    folder = step_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*_model_states.pt, expected a DeepSpeed checkpoint")
    layers, ranks = _files(folder, _LAYER), _files(folder, _RANK)
    shards = TorchShards(len({_LAYER.fullmatch(one)[2] for one in layers}) if layers else len(ranks))  # type: ignore[index]
    state = load_torch_dict(folder / ranks[0])
    keys = _by_layer(folder, layers) if layers else _by_sequence(folder, ranks, shards)
    is_neox = _add(shards, keys)
    version = "newest" if any(".linear1." in key for _, found in keys.values() for key in found) else None
    arguments = attributes(state.get("args"))
    files = list(config) or sorted(folder.glob("configs/*.yml"))
    if assumed is not None and not (files if is_neox else "num_layers" in arguments):
        describe: Callable[[int], Model] = partial(with_table, assumed)
    elif is_neox:
        describe = partial(descriptions.of_neox, files, upstream=version, where=folder)
    else:
        describe = partial(descriptions.of_megatron, arguments, where=folder, is_core=False)

    iteration = state.get("iteration")
    return open_shards(
        shards,
        folder,
        lambda rows: described(state, rows) or describe(rows),
        lambda model: _neox_convention(model) if is_neox else Convention(),
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
"""The files of each layer, by rank, and its keys."""


def _by_layer(folder: Path, names: Iterable[str]) -> _Layers:
    files: dict[int, list[Path]] = {}
    for name in names:
        number = int(_LAYER.fullmatch(name)[1])  # type: ignore[index]
        files.setdefault(number, []).append(folder / name)
    return {number: (paths, _keys(load_torch_dict(paths[0]))) for number, paths in sorted(files.items())}


def _by_sequence(folder: Path, names: Sequence[str], shards: TorchShards) -> _Layers:
    paths = [folder / name for name in names]
    found: dict[int, tuple[list[Path], list[str]]] = {}
    for key in _keys(shards.load(paths[0])["module"]):
        words = key.split(".", 2)
        if words[0] != "sequential" or not words[1].isdecimal():
            raise CheckpointError(f"{paths[0]}: has {key}, expected sequential.N.* — it is not a GPT-NeoX checkpoint")
        found.setdefault(int(words[1]), (paths, []))[1].append(words[2])
    return dict(sorted(found.items()))


def _keys(content: Any) -> list[str]:
    return [str(key) for key in content if not is_buffer(str(key))] if isinstance(content, Mapping) else []


def _add(shards: TorchShards, layers: _Layers) -> bool:
    """Add the places of all tensors; return whether this is a GPT-NeoX checkpoint."""
    block, first = 0, min(layers, default=0)
    for number, (paths, keys) in layers.items():
        is_block = any(key.startswith("input_layernorm.") for key in keys)
        for key in keys:
            if is_block:
                name = f"layers.{block}.{canonical_inside(key)}"
            else:
                # Megatron-DeepSpeed's final norm is a layer of its own.
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


_BLOCK_KEYS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.dense",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
}
_NEWEST_KEYS = {"mlp.dense_h_to_4h": "mlp.linear1", "mlp.dense_4h_to_h": "mlp.linear2"}


def write(output: Output, folder: Path) -> None:
    """Write weights for GPT-NeoX's `finetune` into the empty ``folder``, with the configuration keys to use.

    Without a pipeline (``pipeline`` 0, and 1 for v2.0) the files are sequential, which is how upstream loads them.

    Raises:
        CheckpointError: GPT-NeoX cannot express the model.
    """
    model, newest = output.model, output.version != "v2.0"
    settings = neox_settings(output)
    output.check_sizes()
    step = folder / "global_step0"
    step.mkdir()
    sharding = Sharding(model, _neox_convention(model), output.tensor)
    places = [(units_of, *_neox_place(model, units_of[-1], newest=newest)) for units_of in units(model)]
    is_sequential = output.pipeline < (1 if newest else 2)
    state = _client_state(output)
    if is_sequential:
        for rank in range(output.tensor):
            module = {}
            for names, number, key in places:
                module[f"sequential.{number}.{key}"] = piece = _piece(sharding, output, names, rank)
                output.done(piece.nbytes)
            module |= {f"sequential.{number}.{key}": tensor for number, key, tensor in _unused(output, newest=newest)}
            save({**state, "module": module}, step / f"mp_rank_{rank:02d}_model_states.pt")
    else:
        _write_layers(output, step, sharding, places, newest=newest)
        for rank in range(output.tensor * output.pipeline):
            save({**state, "module": None}, step / f"mp_rank_{rank:02d}_model_states.pt")
    (step / "configs").mkdir()
    (step / "configs" / "model.yml").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / LATEST).write_text(step.name, encoding="utf-8")


def _write_layers(
    output: Output,
    step: Path,
    sharding: Sharding,
    places: Iterable[tuple[tuple[str, ...], int, str]],
    *,
    newest: bool,
) -> None:
    unused: dict[int, dict[str, torch.Tensor]] = {}
    for number, key, tensor in _unused(output, newest=newest):
        unused.setdefault(number, {})[key] = tensor
    for number, group in itertools.groupby(places, key=lambda one: one[1]):
        layers: list[dict[str, torch.Tensor]] = [dict(unused.get(number, {})) for _ in range(output.tensor)]
        for names, _, key in group:
            pieces = sharding.cut(names, [output.read(name) for name in names])
            for layer, piece in zip(layers, pieces, strict=True):
                layer[key] = owned(piece)
            output.done(sum(piece.nbytes for piece in pieces))
        for rank, layer in enumerate(layers):
            save(layer, step / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")


def _piece(sharding: Sharding, output: Output, names: tuple[str, ...], rank: int) -> torch.Tensor:
    return owned(sharding.cut(names, [output.read(name) for name in names])[rank])


def _neox_convention(model: Model) -> Convention:
    shared = model.num_query_groups != model.num_heads
    return Convention("block" if shared else "grouped", gate_first=False, sums_biases=model.parallel_residual)


def _neox_place(model: Model, name: str, *, newest: bool) -> tuple[int, str]:
    """Return a parameter's layer number, and its key in that layer."""
    outside = {
        WORDS: (0, "word_embeddings.weight"),
        POSITIONS: (0, "position_embeddings.weight"),
        HEAD: (model.num_layers + 4, "final_linear.weight"),
    }
    if name in outside:
        return outside[name]
    block, local = local_name(name)
    layer, _, kind = local.rpartition(".")
    if model.norm == "rmsnorm" and "norm" in layer:
        kind = "scale"
    if block is None:
        return model.num_layers + 3, f"norm.{kind}"
    keys = {**_BLOCK_KEYS, **(_NEWEST_KEYS if newest else {})}
    return block + 2, f"{keys[layer]}.{kind}"


def _unused(output: Output, *, newest: bool) -> list[tuple[int, str, torch.Tensor]]:
    """Return tensors that upstream requires but ignores or recomputes: a second norm, v2.0's rotary frequencies."""
    model, found = output.model, []
    for number in range(2, model.num_layers + 2):
        if model.shared_norm:
            for kind, value in (("weight", 1.0), ("bias", 0.0)) if model.norm == "layernorm" else (("scale", 1.0),):
                found.append((number, f"post_attention_layernorm.{kind}", torch.full((model.hidden_size,), value)))
        if model.positions == "rotary" and not newest:
            even = torch.arange(0, model.rotary_dim, 2, dtype=torch.float32)
            frequencies = 1.0 / model.rotary_base ** (even / model.rotary_dim)
            found.append((number, "attention.rotary_emb.inv_freq", frequencies))
    return found


def _client_state(output: Output) -> dict[str, Any]:
    model = output.model
    return {
        **dict.fromkeys(("optimizer", "lr_scheduler", "param_shapes", "data_sampler", "random_ltd")),
        **dict.fromkeys(("skipped_steps", "global_steps", "global_samples", "iteration"), 0),
        "dp_world_size": 1,
        "mp_world_size": output.tensor * max(output.pipeline, 1),
        "buffer_names": [],
        "sparse_tensor_module_names": [],
        "ds_config": {},
        "ds_version": "0.0.0",
        # Upstream compares what is here with its own arguments.
        "args": {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_attention_heads": model.num_heads,
            "max_position_embeddings": model.max_positions,
            "padded_vocab_size": model.padded_vocab_size,
            "model_parallel_size": output.tensor,
        },
        **description(model),
    }


def neox_settings(output: Output) -> dict[str, Any]:
    """Return the keys of GPT-NeoX's configuration that describe a model and its parallel sizes.

    Raises:
        CheckpointError: this version of GPT-NeoX cannot express the model.
    """
    model, newest = output.model, output.version != "v2.0"
    problems = []
    if model.head_dim * model.num_heads != model.hidden_size:
        problems.append(f"head dimension {model.head_dim}")
    if model.output_bias != model.attention_bias:
        problems.append("biases in only part of the attention")
    if not newest and (model.gated or model.num_query_groups != model.num_heads or not model.mlp_bias):
        problems.append("a gated MLP, grouped-query attention or layers without bias")
    if model.norm == "rmsnorm" and model.rms_eps_on_root == newest:
        problems.append(f"RMSNorm with epsilon {'inside' if not newest else 'outside'} the square root")
    if model.activation == "geglu" or (model.activation not in ("gelu", "gelu_tanh", "relu", "swiglu") and not newest):
        problems.append(f"activation {model.activation}")
    wide = model.ffn_hidden_size != 4 * model.hidden_size
    if wide and not newest:
        problems.append(f"MLP width {model.ffn_hidden_size}")
    if problems:
        raise CheckpointError(f"GPT-NeoX {output.version or 'newest'}: cannot express {'; '.join(problems)}")
    own: dict[str, Any] = {}
    if newest:
        own = {"use_bias_in_attn_linear": model.attention_bias, "use_bias_in_mlp": model.mlp_bias}
        own |= {"num_kv_heads": model.num_query_groups} if model.num_query_groups != model.num_heads else {}
        if model.gated:
            own["intermediate_size"] = 3 * model.ffn_hidden_size
        elif wide:
            own["intermediate_size"] = model.ffn_hidden_size
    epsilon = "rms_norm_epsilon" if model.norm == "rmsnorm" else "layernorm_epsilon"
    return {
        "pipe_parallel_size": output.pipeline,
        "model_parallel_size": output.tensor,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "max_position_embeddings": model.max_positions,
        "pos_emb": model.positions,
        "rotary_pct": model.rotary_fraction,
        "rotary_emb_base": int(model.rotary_base),
        "no_weight_tying": not model.tied_embeddings,
        "gpt_j_residual": model.parallel_residual,
        "gpt_j_tied": model.shared_norm,
        "norm": model.norm,
        epsilon: model.norm_eps,
        "activation": model.activation.removesuffix("_tanh"),
        "bias_gelu_fusion": model.activation == "gelu_tanh",
        "output_layer_parallelism": "column",
        **own,
    }
