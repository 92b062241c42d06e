"""Hugging Face checkpoint files, read lazily and written in shards with an index.

Sources of the file names: transformers 5.24.0 utils/__init__.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ascend_adapt import regular_files
from ascend_adapt.checkpoint.canonical import parameters
from ascend_adapt.checkpoint.hugging_face import gpt2, gpt_neox, llama
from ascend_adapt.checkpoint.hugging_face.settings import Unsupported
from ascend_adapt.checkpoint.source import Given, Rule, RuleReader, Source, refuse_leftover
from ascend_adapt.checkpoint.torch_files import load_torch_file
from ascend_adapt.checkpoint.writing import Output, owned
from ascend_adapt.config.model_config import Model
from ascend_adapt.errors import CheckpointError, not_installed, one_line

CONFIG = "config.json"
ARCHITECTURES: Mapping[str, ModuleType] = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    **dict.fromkeys(llama.ARCHITECTURES, llama),
}
PREFIXES = ("transformer.h.", "gpt_neox.layers.", "model.layers.")
"""Prefix of the names of the blocks' parameters."""
_CLASSES = {"gpt2": gpt2.ARCHITECTURE, "gpt_neox": gpt_neox.ARCHITECTURE, **llama.ARCHITECTURES}
TOKENIZER = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
    "chat_template.jinja",
    "generation_config.json",
]
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
SHARD_BYTES = 2_000_000_000
"""Maximum shard size in bytes; a shard is in memory while it is written."""


def is_here(folder: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    return (folder / CONFIG).is_file() and bool(_weight_files(folder))


def open_source(folder: Path, _given: Given) -> Source:
    """Return the checkpoint in ``folder``.

    Raises:
        CheckpointError: the checkpoint cannot be read, or has an architecture that the native model does not support.
    """
    stored = StoredTensors(folder)
    files = {"files": len(set(stored.files.values()))}
    return source_of(folder / CONFIG, stored, dialect="hf", path=folder, layout=files)


def source_of(
    config_file: Path, tensors: Mapping[str, torch.Tensor], *, layout: Mapping[str, object], **facts: Any
) -> Source:
    """Return the checkpoint with these tensors; ``facts`` are additional fields of the source.

    Raises:
        CheckpointError: the configuration cannot be read or is not supported, or tensors are missing or unexpected.
    """
    config = read_config(config_file)
    kind = str(config.get("model_type"))
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{config_file}: model_type {kind!r}, expected one of {', '.join(ARCHITECTURES)} — the native model "
            "supports no others"
        )
    try:
        model: Model = ARCHITECTURES[kind].to_model(config)
    except KeyError as error:
        raise CheckpointError(f"{config_file}: has no {error}, which {kind} requires — restore the file") from error
    except Unsupported as error:
        raise CheckpointError(f"{config_file}: {error} — the native model supports no other value") from error
    names = set(tensors)
    rules = [_named(rule, names) for rule in ARCHITECTURES[kind].rules(model)]
    folder = facts["path"]
    refuse_leftover(names, rules, folder, ("lm_head.weight", "embed_out.weight") if model.tied_embeddings else ())
    notes: tuple[str, ...] = ()
    window = llama.sliding_window(config) if kind in llama.ARCHITECTURES else None
    if window and window < config["max_position_embeddings"]:
        notes = (f"positions end at {window}, where the sliding window would take effect",)
    return Source(
        model=model,
        read=RuleReader(rules, lambda rule: [tensors[key] for key in rule.theirs], parameters(model), folder),
        dtype=tensors[rules[0].theirs[0]].dtype,
        layout={"architecture": kind, **layout},
        notes=notes,
        tokenizer=config_file.parent,
        **facts,
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in config.json.

    Raises:
        CheckpointError: the file cannot be read or is not a JSON object.
    """
    try:
        config = json.loads(regular_files.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({one_line(error)}), expected JSON") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: is not a JSON object, expected names and values")
    return config


class StoredTensors(Mapping[str, torch.Tensor]):
    """Tensors of safetensors files, or of pytorch_model.bin, read one at a time; ``files`` maps names to files."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        for path in _weight_files(folder):
            if path.suffix == ".safetensors":
                content, names = _open_safetensors(path)
            else:
                content = load_torch_file(path)
                names = list(content) if isinstance(content, dict) else []
            self._open[path] = content
            self.files |= dict.fromkeys(names, path)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all tensors."""
        return iter(self.files)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.files)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor."""
        path = self.files[name]
        content = self._open[path]
        tensor: torch.Tensor = content.get_tensor(name) if path.suffix == ".safetensors" else content[name]
        return tensor


def architecture_of(model: Model) -> tuple[str, dict[str, Any]]:
    """Return the architecture that can express a model, and the content of config.json without the dtype.

    Raises:
        CheckpointError: no architecture can; the message lists the reasons of each.
    """
    refusals = []
    for module in (gpt2, gpt_neox, llama):
        try:
            config: dict[str, Any] = module.to_config(model)
        except Unsupported as error:
            refusals.append(f"{module.__name__.rpartition('.')[2]}: {error}")
            continue
        kind = config["model_type"]
        return kind, {"architectures": [_CLASSES[kind]], **config}
    raise CheckpointError(
        f"the model: no Hugging Face architecture can express it ({' | '.join(refusals)}) — convert to another dialect"
    )


def write(output: Output, folder: Path) -> None:
    """Write a checkpoint into the empty ``folder``.

    Raises:
        CheckpointError: no architecture can express the model.
    """
    from safetensors.torch import save_file

    kind, config = architecture_of(output.model)
    rules: Iterable[Rule] = ARCHITECTURES[kind].rules(output.model)
    index: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total, size, count = 0, 0, 0

    def flush() -> None:
        nonlocal shard, size, count
        count += 1
        path = folder / f"model-{count:05d}.safetensors"
        save_file(shard, path, metadata={"format": "pt"})
        path.chmod(folder.stat().st_mode & 0o666)  # safetensors creates files that only their owner can read
        index.update(dict.fromkeys(shard, path.name))
        shard, size = {}, 0

    for rule in rules:
        tensors = rule.outward([output.read(name) for name in rule.ours])
        for key, tensor in zip(rule.theirs, tensors, strict=True):
            # safetensors rejects views and tensors that share memory.
            one = owned(tensor)
            is_shared = any(one.data_ptr() == other.data_ptr() for other in shard.values())
            shard[key] = one.clone() if is_shared else one
        amount = sum(tensor.nbytes for tensor in tensors)
        size, total = size + amount, total + amount
        output.done(amount)
        if size >= SHARD_BYTES:
            flush()
    if shard:
        flush()
    _name_shards(folder, index, total, count)
    stated = {**config, "torch_dtype": str(output.dtype).removeprefix("torch.")}
    (folder / CONFIG).write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")


def copy_tokenizer(source: Path, folder: Path) -> list[str]:
    """Copy tokenizer files and return their names; the ids of special tokens are copied into config.json.

    Without these ids, transformers does not know where a generated text ends.
    """
    found = [name for name in TOKENIZER if (source / name).is_file() and not (folder / name).exists()]
    for name in found:
        shutil.copyfile(source / name, folder / name)
    theirs = read_config(source / CONFIG) if (source / CONFIG).is_file() else {}
    config = read_config(folder / CONFIG) | {name: theirs[name] for name in _SPECIAL_TOKENS if name in theirs}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return found


def _name_shards(folder: Path, index: Mapping[str, str], total: int, count: int) -> None:
    if count == 1:
        (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
        return
    names = {
        f"model-{one:05d}.safetensors": f"model-{one:05d}-of-{count:05d}.safetensors" for one in range(1, count + 1)
    }
    for before, after in names.items():
        (folder / before).rename(folder / after)
    content = {"metadata": {"total_size": total}, "weight_map": {key: names[file] for key, file in index.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _named(rule: Rule, names: Set[str]) -> Rule:
    """Return the rule with the names in the files: old gpt2 files omit `transformer.`, a head may have two names."""

    def found(key: str) -> str:
        others = (key.removeprefix("transformer."), {"embed_out.weight": "lm_head.weight"}.get(key, key))
        return next((one for one in (key, *others) if one in names), key)

    return Rule(rule.ours, tuple(found(key) for key in rule.theirs), rule.inward, rule.outward)


def _weight_files(folder: Path) -> list[Path]:
    """Return the weight files. If an index exists, it names them, and all of them must exist."""
    for index, single in (
        ("model.safetensors.index.json", "model.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model.bin"),
    ):
        if (folder / index).is_file():
            try:
                names = set(json.loads(regular_files.read_text(folder / index))["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointError(
                    f"{folder / index}: cannot be read ({one_line(error)}), expected an index"
                ) from error
            here = {one.name for one in folder.iterdir()}
            if foreign := sorted(repr(name) for name in names if name not in here):
                raise CheckpointError(
                    f"{folder / index}: names {foreign[0][:100]}, which is not in this folder — restore it"
                )
            return [folder / name for name in sorted(names)]
        if (folder / single).is_file():
            return [folder / single]
    return []


def _open_safetensors(path: Path) -> tuple[Any, list[str]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise CheckpointError(not_installed("safetensors", "*.safetensors files", "hf")) from error
    try:
        regular_files.open_binary(path).close()  # safetensors reports every system error as a missing file
        content: Any = safe_open(path, framework="pt")
        return content, list(content.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({one_line(error)}), expected safetensors — restore it"
        ) from error
