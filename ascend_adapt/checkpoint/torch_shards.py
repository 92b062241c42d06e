"""Tensors of the Megatron family in torch.save files, indexed by canonical name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.checkpoint.canonical import HEAD, WORDS, parameters
from ascend_adapt.checkpoint.source import Rule, RuleReader, Source, Tensors, is_buffer, refuse_leftover
from ascend_adapt.checkpoint.tensor_shards import Convention, Sharding, units
from ascend_adapt.checkpoint.torch_files import load_torch_dict
from ascend_adapt.config.model_config import Model
from ascend_adapt.errors import CheckpointError

# Names of all code bases and versions in one table: no name stands for two different parameters.
_INSIDE_A_BLOCK = {
    r"^self_attention\.linear_qkv\.layer_norm_": "input_norm.",
    r"^mlp\.linear_fc1\.layer_norm_": "post_attention_norm.",
    r"^input_layernorm\.": "input_norm.",
    r"^(post_attention_layernorm|pre_mlp_layernorm)\.": "post_attention_norm.",
    r"^self_attention\.": "attention.",
    r"^attention\.linear_qkv\.": "attention.query_key_value.",
    r"^attention\.linear_proj\.": "attention.dense.",
    r"^mlp\.(linear_fc1|linear1)\.": "mlp.dense_h_to_4h.",
    r"^mlp\.(linear_fc2|linear2)\.": "mlp.dense_4h_to_h.",
    r"\.scale$": ".weight",
}
_OUTSIDE = {
    r"^(module\.|language_model\.)+": "",
    r"^(embedding\.)?word_embeddings\.": "embedding.words.",
    r"^(embedding\.)?position_embeddings\.": "embedding.positions.",
    r"^((encoder|transformer|decoder)\.)?(final_layernorm|final_norm|norm)\.": "final_norm.",
    r"^(output_layer|final_linear|lm_head)\.": "head.",
    r"\.scale$": ".weight",
}
_BLOCK = re.compile(r"^(?:module\.|language_model\.)*(?:encoder|transformer|decoder)\.layers\.(\d+)\.")

Place = tuple[Path, tuple[str, ...]]
"""Location of a tensor: a file, and the nested keys in it."""


def canonical_inside(key: str) -> str:
    """Return the canonical name of a key inside a block."""
    return _replaced(key, _INSIDE_A_BLOCK)


def canonical_name(key: str, first_block: int = 0) -> str:
    """Return the canonical name of a model's key, with blocks numbered from ``first_block``."""
    if block := _BLOCK.match(key):
        return f"layers.{first_block + int(block[1])}.{canonical_inside(key[block.end() :])}"
    return _replaced(key, _OUTSIDE)


def _replaced(key: str, table: Mapping[str, str]) -> str:
    for theirs, ours in table.items():
        key = re.sub(theirs, ours, key)
    return key


def flattened(content: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the nested keys of each tensor in nested dicts."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flattened(value, (*keys, str(key)))
        elif isinstance(value, torch.Tensor):
            yield (*keys, str(key))


class TorchShards:
    """Index of tensors: for each canonical name, the shards' locations in order of tensor-parallel rank.

    ``load`` reads a file and returns its content.
    """

    def __init__(self, ranks: int, load: Callable[[Path], Mapping[str, Any]] = load_torch_dict) -> None:
        self.ranks = ranks
        self.places: dict[str, list[Place]] = {}
        self._load = lru_cache(maxsize=2 * ranks)(load)

    def load(self, path: Path) -> Any:
        """Return the content of a file; its tensors are memory-mapped, and the latest files are cached."""
        return self._load(path)

    def add(self, name: str, path: Path, keys: tuple[str, ...]) -> None:
        """Add the location of the next rank's shard; buffers are skipped."""
        if not is_buffer(name):
            self.places.setdefault(name, []).append((path, keys))

    def pieces(self, name: str) -> list[torch.Tensor]:
        """Return the ranks' shards of a tensor."""
        found = []
        for path, keys in self.places[name]:
            content = self.load(path)
            for key in keys:
                content = content[key]
            found.append(content)
        return found

    def incomplete(self) -> list[str]:
        """Return the tensors that are missing on some ranks."""
        return [name for name, places in self.places.items() if len(places) != self.ranks]


def open_shards(
    shards: TorchShards,
    path: Path,
    describe: Callable[[int], Model],
    convention_of: Callable[[Model], Convention],
    **facts: Any,
) -> Source:
    """Return the checkpoint made of the tensors in ``shards``.

    ``describe`` maps the number of embedding rows to the model; ``facts`` are additional fields of the source.

    Raises:
        CheckpointError: tensors are missing or unexpected.
    """
    if WORDS not in shards.places:
        raise CheckpointError(f"{path}: has no word embeddings, expected a complete checkpoint — copy all of its files")
    if incomplete := shards.incomplete():
        raise CheckpointError(
            f"{path}: {incomplete[0]} is in {len(shards.places[incomplete[0]])} files, expected one for each of "
            f"{shards.ranks} tensor-parallel ranks — copy all of its files"
        )
    words = shards.pieces(WORDS)
    model = describe(sum(piece.shape[0] for piece in words))
    sharding = Sharding(model, convention_of(model), shards.ranks)
    rules = [sharding.rule(names, names[-1]) for names in units(model)]
    # A norm that upstream creates but does not use, and the last stage's copy of a tied table.
    unused = [name for name in shards.places if model.shared_norm and ".post_attention_norm." in name]
    unused += [HEAD] if model.tied_embeddings else []
    refuse_leftover(shards.places, rules, path, unused)

    def fetch(rule: Rule) -> Tensors:
        return shards.pieces(rule.theirs[0])

    return Source(
        path=path,
        model=model,
        read=RuleReader(rules, fetch, parameters(model), path),
        dtype=words[0].dtype,
        differing=sharding.differing,
        **facts,
    )
