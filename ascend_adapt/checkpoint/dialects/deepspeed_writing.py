"""Writers of weights for the DeepSpeed pipelines of GPT-NeoX and Megatron-DeepSpeed, and for sequential GPT-NeoX.

The layout of the files is in ``deepspeed_layers``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ascend_adapt.checkpoint.canonical import HEAD, POSITIONS, WORDS, local_name
from ascend_adapt.checkpoint.dialects.deepspeed_files import LATEST
from ascend_adapt.checkpoint.dialects.deepspeed_layers import neox_convention
from ascend_adapt.checkpoint.dialects.megatron import check_model
from ascend_adapt.checkpoint.dialects.neox_settings import neox_settings
from ascend_adapt.checkpoint.tensor_shards import Convention, Sharding, units
from ascend_adapt.checkpoint.writing import Output, description, mapped_file, owned, placeholder, save
from ascend_adapt.config.model_config import Model

_BLOCK_KEYS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.dense",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
}
_NEWEST_KEYS = {"mlp.dense_h_to_4h": "mlp.linear1", "mlp.dense_4h_to_h": "mlp.linear2"}
_Place = tuple[tuple[str, ...], int, str]
"""Canonical names in one of upstream's tensors, the number of its layer, and its key in the layer."""


def write_neox(output: Output, folder: Path) -> None:
    """Write weights for GPT-NeoX's `finetune`, and the configuration keys to use, into the empty ``folder``.

    Without a pipeline (``pipeline`` 0, and 1 for v2.0) the files are sequential, which is how upstream loads them.

    Raises:
        CheckpointError: GPT-NeoX cannot express the model.
    """
    model, newest = output.model, output.version != "v2.0"
    settings = neox_settings(output)
    output.check_sizes()
    step = _step_folder(folder)
    sharding = Sharding(model, neox_convention(model), output.tensor)
    places = [(names, *_neox_place(model, names[-1], newest=newest)) for names in units(model)]
    unused = _unused(output, newest=newest)
    if output.pipeline < (1 if newest else 2):
        _write_sequential(output, step, sharding, places, unused)
    else:
        _write_layers(output, step, sharding, places, unused, _neox_arguments(output))
    (step / "configs").mkdir()
    (step / "configs" / "model.yml").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def write_megatron_deepspeed(output: Output, folder: Path) -> None:
    """Write weights for Megatron-DeepSpeed with DeepSpeed's engine into the empty ``folder``.

    Upstream loads them with --finetune --no-load-optim --override-lr-scheduler.

    Raises:
        CheckpointError: Megatron-DeepSpeed cannot express the model.
    """
    check_model(output.model, "Megatron-DeepSpeed", needs_tied=True)
    output.check_sizes()
    places = [(names, *_megatron_place(output.model, names[-1])) for names in units(output.model)]
    sharding = Sharding(output.model, Convention(), output.tensor)
    _write_layers(output, _step_folder(folder), sharding, places, more={"checkpoint_version": 3.0})


def _step_folder(folder: Path) -> Path:
    step = folder / "global_step0"
    step.mkdir()
    (folder / LATEST).write_text(step.name, encoding="utf-8")
    return step


_Unused = Sequence[tuple[int, str, torch.Tensor]]
"""Tensors that upstream requires but ignores or recomputes: the number of the layer, the key, and the values."""


def _write_sequential(
    output: Output, step: Path, sharding: Sharding, places: Iterable[_Place], unused: _Unused
) -> None:
    keys = {names: f"sequential.{number}.{key}" for names, number, key in places}
    ranks = []
    for rank in range(output.tensor):
        module = {key: placeholder(sharding.shapes(names)[rank], output.dtype) for names, key in keys.items()}
        kept = {f"sequential.{number}.{key}": tensor for number, key, tensor in unused}
        state = {**_client_state(output), **_neox_arguments(output), "module": module | kept}
        ranks.append(mapped_file(state, step / f"mp_rank_{rank:02d}_model_states.pt")["module"])
        for key, tensor in kept.items():
            ranks[-1][key].copy_(tensor)
    for names, key in keys.items():
        pieces = sharding.cut(names, [output.read(name) for name in names])
        for module, piece in zip(ranks, pieces, strict=True):
            module[key].copy_(piece)
            output.done(piece.nbytes)


def _write_layers(
    output: Output,
    step: Path,
    sharding: Sharding,
    places: Iterable[_Place],
    unused: _Unused = (),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    by_layer: dict[int, dict[str, torch.Tensor]] = {}
    for number, key, tensor in unused:
        by_layer.setdefault(number, {})[key] = tensor
    for number, group in itertools.groupby(places, key=lambda one: one[1]):
        layers: list[dict[str, torch.Tensor]] = [dict(by_layer.get(number, {})) for _ in range(output.tensor)]
        for names, _, key in group:
            pieces = sharding.cut(names, [output.read(name) for name in names])
            for layer, piece in zip(layers, pieces, strict=True):
                layer[key] = owned(piece)
            output.done(sum(piece.nbytes for piece in pieces))
        for rank, layer in enumerate(layers):
            save(layer, step / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    for rank in range(output.tensor * output.pipeline):
        save({**_client_state(output), **more, "module": None}, step / f"mp_rank_{rank:02d}_model_states.pt")


def _neox_place(model: Model, name: str, *, newest: bool) -> tuple[int, str]:
    """Return the number of a parameter's layer, and its key in the layer."""
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


def _megatron_place(model: Model, name: str) -> tuple[int, str]:
    """Return the number of a parameter's layer, and its key in the layer."""
    outside = {WORDS: (1, "word_embeddings.weight"), POSITIONS: (1, "position_embeddings.weight")}
    if name in outside:
        return outside[name]
    block, local = local_name(name)
    layer, _, kind = local.rpartition(".")
    if block is None:
        return model.num_layers + 4, kind
    return block + 3, f"{_BLOCK_KEYS[layer].replace('attention.', 'self_attention.')}.{kind}"


def _unused(output: Output, *, newest: bool) -> _Unused:
    """Return tensors that upstream requires but ignores or recomputes: a second norm, v2.0's rotary frequencies."""
    model = output.model
    found = []
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
    return {
        **dict.fromkeys(("optimizer", "param_shapes", "data_sampler", "random_ltd")),
        # bigscience loads it regardless of the options.
        "lr_scheduler": dict.fromkeys(
            (
                "max_lr",
                "min_lr",
                "warmup_steps",
                "decay_steps",
                "decay_style",
                "num_steps",
                "warmup_tokens",
                "num_tokens",
            ),
            0,
        ),
        **dict.fromkeys(("skipped_steps", "global_steps", "global_samples", "iteration"), 0),
        "dp_world_size": 1,
        "mp_world_size": output.tensor * max(output.pipeline, 1),
        "buffer_names": [],
        "sparse_tensor_module_names": [],
        "ds_config": {},
        "ds_version": "0.0.0",
        **description(output.model),
    }


def _neox_arguments(output: Output) -> dict[str, Any]:
    """Return the arguments that GPT-NeoX compares with its own."""
    model = output.model
    compared = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "max_position_embeddings": model.max_positions,
        "padded_vocab_size": model.padded_vocab_size,
        "model_parallel_size": output.tensor,
    }
    return {"args": compared}
