"""GLM checkpoints: one file for each model-parallel rank, with a flat dict of parameters.

    latest_checkpointed_iteration.txt, latest           the tag, a number
    126000/mp_rank_00_model_states.pt                   "module": the parameters

The files do not record the number of heads, so reading a canonical state needs a configuration. Without one, the
checkpoint can only be resized to another number of ranks, with GLM's names. On each rank, query, key and value are
separate blocks. Vocabulary padding does not depend on the ranks.

Source: THUDM/GLM@4f61ed72 utils.py, change_mp.py, model/modeling_glm.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascend_adapt import bounded_yaml, regular_files
from ascend_adapt.checkpoint.canonical import BLOCK_POSITIONS, POSITIONS, QUERY_KEY_VALUE, WORDS, heads, parameters
from ascend_adapt.checkpoint.qkv import reordered
from ascend_adapt.checkpoint.source import Given, Rule, RuleReader, Source, Tensors, refuse_leftover
from ascend_adapt.checkpoint.torch_files import load_torch_dict
from ascend_adapt.checkpoint.trackers import tracked_name
from ascend_adapt.checkpoint.writing import owned, save
from ascend_adapt.config.model_config import Model
from ascend_adapt.config.yaml_file import model_from_dict, run_arguments
from ascend_adapt.errors import CheckpointError, ConfigError, one_line

TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
_CUT = {
    "word_embeddings.weight": 0,
    "attention.dense.weight": 1,
    "mlp.dense_4h_to_h.weight": 1,
    **{f"mlp.dense_h_to_4h.{kind}": 0 for kind in ("weight", "bias")},
}
_BLOCKS = ("attention.query_key_value.weight", "attention.query_key_value.bias")
_NAMES = {
    WORDS: "word_embeddings.weight",
    POSITIONS: "transformer.position_embeddings.weight",
    BLOCK_POSITIONS: "transformer.block_position_embeddings.weight",
}
# Keys that a run resumes from, except RNG states and the optimizer, which belong to a rank.
_KEPT = (
    *("iteration", "client_lr_scheduler", "lr_scheduler", "skipped_steps", "global_steps", "global_samples"),
    "dp_world_size",
)


@dataclass(frozen=True)
class GlmCheckpoint:
    """Contents of a checkpoint's files, in rank order."""

    folder: Path
    files: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return list(self.files[0]["module"])

    def read(self, name: str) -> torch.Tensor:
        """Return a parameter, merged from all ranks.

        Raises:
            CheckpointError: a replicated parameter differs between ranks.
        """
        pieces = [file["module"][name] for file in self.files]
        if name.endswith(_BLOCKS):
            parts = [piece.chunk(3) for piece in pieces]
            return torch.cat([torch.cat(part) for part in zip(*parts, strict=True)])
        axis = _axis(name)
        if axis is not None:
            return torch.cat(pieces, axis)
        if not all(torch.equal(piece, pieces[0]) for piece in pieces):
            raise CheckpointError(
                f"{self.folder}: {name} differs between ranks, expected identical values — choose another checkpoint"
            )
        tensor: torch.Tensor = pieces[0]
        return tensor


@dataclass(frozen=True)
class AsGlm:
    """A checkpoint of another dialect with GLM's names and layout; tensors are read lazily."""

    source: Source

    @property
    def folder(self) -> Path:
        """Folder of the checkpoint, named by its tag, a number, as GLM does."""
        return Path(str(self.source.iteration or 0))

    @property
    def files(self) -> list[dict[str, Any]]:
        """Entries of a file besides parameters."""
        return [{"iteration": self.source.iteration or 0}]

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [glm_name(one.name) for one in self.source.parameters()]

    def read(self, name: str) -> torch.Tensor:
        """Return a parameter."""
        ours = next(one.name for one in self.source.parameters() if glm_name(one.name) == name)
        tensor = self.source.read(ours)
        return reordered(tensor, heads(self.source.model), "grouped", "block") if QUERY_KEY_VALUE in ours else tensor

    @classmethod
    def of(cls, source: Source) -> AsGlm:
        """Wrap a checkpoint whose model GLM can express.

        Raises:
            CheckpointError: GLM cannot express the model.
        """
        if source.model.positions != "block":
            raise CheckpointError(
                f"{source.path}: has positions {source.model.positions!r}, expected 'block' for GLM — convert it to "
                "another dialect"
            )
        return cls(source)


def tag_folder(path: Path) -> Path | None:
    """Return the folder of a checkpoint: ``path``, or the folder that its tracker names; None if neither is one."""
    for tracker in (path / name for name in TRACKERS):
        if tracker.is_file():
            path = path / tracked_name(tracker)
            break
    return path if path.is_dir() and any(path.glob("mp_rank_*_model_states.pt")) else None


def is_here(path: Path) -> bool:
    """Return whether a folder holds such a checkpoint."""
    folder = tag_folder(path)
    if folder is None or any(folder.glob("layer_*-model_*")):
        return False
    content = load_torch_dict(min(folder.glob("mp_rank_*_model_states.pt")))
    module = content.get("module")
    return isinstance(module, Mapping) and "transformer.final_layernorm.weight" in module


def open_glm(path: Path) -> GlmCheckpoint:
    """Return the checkpoint; its tensors are read lazily.

    Raises:
        CheckpointError: the checkpoint cannot be read, or ranks have different parameters.
    """
    folder = tag_folder(path)
    if folder is None:
        raise CheckpointError(f"{path}: has no mp_rank_*_model_states.pt, expected a GLM checkpoint")
    names = sorted(folder.glob("mp_rank_*_model_states.pt"), key=lambda one: int(one.name.split("_")[2]))
    files = [load_torch_dict(name) for name in names]
    if any(list(file["module"]) != list(files[0]["module"]) for file in files):
        raise CheckpointError(
            f"{folder}: ranks have different parameters, expected the same on all — copy all of its files"
        )
    return GlmCheckpoint(folder, files)


def glm_name(name: str) -> str:
    """Return GLM's name of a canonical parameter."""
    local = name.replace("input_norm", "input_layernorm").replace("post_attention_norm", "post_attention_layernorm")
    return _NAMES.get(name, f"transformer.{local.replace('final_norm', 'final_layernorm')}")


def open_source(path: Path, given: Given) -> Source:
    """Return the checkpoint as a canonical state; ``given`` has facts that the files lack, as the number of heads.

    Raises:
        CheckpointError: the checkpoint cannot be read, has another architecture, or lacks a configuration or model.
    """
    assumed, arguments = given.assumed, dict[str, Any]()
    if given.config:
        assumed, arguments = _of_run(given.config)
    if assumed is None:
        raise CheckpointError(
            f"{path}: is a glm checkpoint, whose files do not describe the model — pass --config with the config.yaml "
            "of a native run of this model, resize it with --to glm --tp N, or load it into a native run with "
            "--load-pretrained"
        )
    found = open_glm(path)
    module = found.files[0]["module"]
    hidden, ranks = module["word_embeddings.weight"].shape[1], len(found.files)
    if hidden % assumed.num_heads or _NAMES[BLOCK_POSITIONS] not in module:
        what = "no block positions" if not hidden % assumed.num_heads else f"hidden size {hidden}"
        raise CheckpointError(
            f"{found.folder}: has {what}, expected block positions and a multiple of {assumed.num_heads} heads — "
            "configure the model that was saved"
        )
    rows = ranks * module["word_embeddings.weight"].shape[0]
    model = dataclasses.replace(
        assumed,
        hidden_size=hidden,
        head_dim=hidden // assumed.num_heads,
        num_layers=sum(name.endswith("input_layernorm.weight") for name in found.names),
        ffn_hidden_size=ranks * module["transformer.layers.0.mlp.dense_h_to_4h.weight"].shape[0],
        max_positions=module[_NAMES[POSITIONS]].shape[0],
        padded_vocab_size=rows,
        vocab_size=min(assumed.vocab_size, rows),
    )

    def per_head(tensors: Tensors) -> Tensors:
        return [reordered(tensors[0], heads(model), "block", "grouped")]

    rules = [
        Rule((one.name,), (glm_name(one.name),), *((per_head,) if QUERY_KEY_VALUE in one.name else ()))
        for one in parameters(model)
    ]
    refuse_leftover(found.names, rules, found.folder)
    return Source(
        "glm",
        found.folder,
        model,
        RuleReader(rules, lambda rule: [found.read(rule.theirs[0])], parameters(model), found.folder),
        module["word_embeddings.weight"].dtype,
        iteration=found.files[0].get("iteration"),
        layout={"tensor_parallel": ranks, "files": ranks},
        arguments=arguments,
    )


def _of_run(files: Sequence[Path]) -> tuple[Model, dict[str, Any]]:
    """Return the model and arguments in a run's config.yaml, or in the plan of `ascend-run --dry-run --json`."""
    expected = "expected the config.yaml of a native GLM run, or the plan that `ascend-run --dry-run --json` prints"
    try:
        (file,) = files
        text = regular_files.read_text(file)
        # YAML 1.1 reads 1e-05, as JSON writes it, as a string.
        content = json.loads(text) if text.startswith("{") else bounded_yaml.load(text)
        config = content.get("config", content) if isinstance(content, dict) else None
        if not isinstance(config, dict) or "model" not in config:
            raise ValueError("it has no 'model'")
        return model_from_dict(config["model"]), run_arguments(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        shown = " ".join(map(str, files))
        raise CheckpointError(f"--config {shown}: cannot be read ({one_line(error)}), {expected} — pass it") from error


def write(source: GlmCheckpoint | AsGlm, folder: Path, ranks: int, done: Callable[[int], None]) -> None:
    """Write the checkpoint for ``ranks`` model-parallel ranks into the empty ``folder``.

    Raises:
        CheckpointError: a parameter is not divisible by the number of ranks.
    """
    first = source.files[0]
    state = {name: first[name] for name in _KEPT if name in first}
    for rank in range(ranks):
        module = {}
        for name in source.names:
            module[name] = piece = owned(_piece(name, source.read(name), rank, ranks))
            done(piece.nbytes)
        path = folder / source.folder.name / f"mp_rank_{rank:02d}_model_states.pt"
        save({**state, "mp_world_size": ranks, "module": module}, path)
    for tracker in TRACKERS:
        (folder / tracker).write_text(source.folder.name, encoding="utf-8")


def _axis(name: str) -> int | None:
    return next((axis for end, axis in _CUT.items() if name.endswith(end)), None)


def _piece(name: str, whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    is_blocks, axis = name.endswith(_BLOCKS), _axis(name)
    size = whole.shape[0] // 3 if is_blocks else whole.shape[axis or 0]
    if (is_blocks or axis is not None) and size % ranks:
        raise CheckpointError(f"--tp {ranks}: does not divide the {size} rows of {name} — choose another size")
    if is_blocks:
        return torch.cat([part.chunk(ranks)[rank] for part in whole.chunk(3)])
    return whole if axis is None else whole.chunk(ranks, axis)[rank]
