"""Model descriptions: the model of a checkpoint, from the configuration that its code base saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint.torch_files import StandIn
from ascend_adapt.config.model_config import Model
from ascend_adapt.config.train_config import Parallel
from ascend_adapt.errors import CheckpointError, ConfigError
from ascend_adapt.recipes import megatron, megatron_model, neox, neox_model
from ascend_adapt.recipes.neox_files import read_files
from ascend_adapt.recipes.options import Options, Version, version
from ascend_adapt.recipes.vocabulary import Vocabulary, read_vocabulary

# Megatron's options that change the model in ways that the native model does not support.
_UNSUPPORTED = (
    *("apply_layernorm_1p", "rotary_interleaved", "squared_relu", "quick_geglu", "use_rope_scaling", "num_experts"),
    *("apply_residual_connection_post_layernorm", "multi_latent_attention", "rotary_seq_len_interpolation_factor"),
    *("window_size", "qk_layernorm", "embed_layernorm"),
)

# Source: bigscience Megatron-DeepSpeed@8387ae17 megatron/enums.py PositionEmbeddingType.
_BIGSCIENCE_POSITIONS: dict[tuple[object, ...], str] = {
    (1,): "rotary",
    (2,): "absolute",
    ("rotary",): "rotary",
    ("absolute",): "absolute",  # pickled by name
}


def of_neox(files: Sequence[Path], rows: int, upstream: str | None, where: Path) -> Model:
    """Return the model that GPT-NeoX's configuration files describe; ``upstream`` is the version of upstream, or None.

    Raises:
        CheckpointError: the configuration files are missing or cannot be read.
    """
    if not files:
        raise CheckpointError(
            f"{where}: has no configs folder, expected the configuration of the training run — pass its YAML files "
            "with --config"
        )
    try:
        values = read_files([str(one) for one in files], None)
        options = neox.read_options(values, upstream)
        vocabulary = _vocabulary(options("tokenizer_type"), options("vocab_file"), rows)
        return replace(
            neox_model.read_model(options, vocabulary, Parallel(), options.size("num_layers")), padded_vocab_size=rows
        )
    except ConfigError as error:
        raise CheckpointError(f"{files[0].parent}: {error}") from error


def of_megatron(arguments: Mapping[str, Any], rows: int, where: Path, *, is_core: bool) -> Model:
    """Return the model that Megatron's saved arguments describe; ``is_core``: parameters have Megatron-core's names.

    Raises:
        CheckpointError: arguments are missing, or require an architecture that the native model does not support.
    """
    if "num_layers" not in arguments:
        raise CheckpointError(
            f"{where}: has no training arguments, expected those that Megatron saves — choose another checkpoint"
        )
    wrong = [f"{name} {arguments[name]!r}" for name in _UNSUPPORTED if arguments.get(name)]
    if wrong:
        raise CheckpointError(
            f"{where}: {', '.join(wrong)}, which the native model does not support — use upstream's own tools"
        )
    # Upstream fills in encoder_seq_length from seq_length, and rejects both on its command line.
    given = {name: value for name, value in arguments.items() if value is not None and name != "encoder_seq_length"}
    positions = given.get("position_embedding_type")
    if isinstance(positions, StandIn):
        given["position_embedding_type"] = _BIGSCIENCE_POSITIONS.get(positions.called_with, "alibi")
    try:
        options = Options(_version_of(given, is_core=is_core), given, {})
        vocabulary = _vocabulary(given.get("tokenizer_type", ""), given.get("vocab_file"), rows)
        # The embedding table has this number of rows, regardless of the multiple it was padded to.
        options.given |= {"pad_vocab_size_to": rows}
        return replace(megatron_model.read_model(options, vocabulary, Parallel()), padded_vocab_size=rows)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _version_of(given: Mapping[str, Any], *, is_core: bool) -> Version:
    """Return the recorded version whose options match best: most shared options, minus missing ones."""
    names = ("core_v0.9.0", "newest") if is_core else megatron.VERSIONS

    def alike(name: str) -> int:
        known = set(version("megatron", name).defaults)
        return len(known & set(given)) - len(known - set(given))

    return version("megatron", max(names, key=alike))


def _vocabulary(kind: str, path: str | None, rows: int) -> Vocabulary:
    """Return the vocabulary of the tokenizer file if the file still exists; otherwise every row counts as an id."""
    try:
        found = read_vocabulary(kind, path, None)
    except ConfigError:
        return Vocabulary(rows, None)
    return found if found.size <= rows else Vocabulary(rows, None)
