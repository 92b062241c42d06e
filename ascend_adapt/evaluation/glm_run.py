"""GLM run: the vocabulary of a GLM checkpoint, and the settings of the run that trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt.checkpoint.source import Source
from ascend_adapt.config.glm_config import Cloze, GlmVocabulary
from ascend_adapt.config.yaml_file import cloze_from_dict
from ascend_adapt.data.glm_tokenizer import GlmTokenizer
from ascend_adapt.errors import DataError, SettingsError
from ascend_adapt.evaluation.text import TokenizerOptions
from ascend_adapt.native.samples.glm_text import load_vocabulary

_MASKS_BY_EXTRA_IDS = {0: (False, False), 1: (False, True), 2: (True, False), 3: (True, True)}
"""(task_mask, decoder_mask) by the number of ids that they add."""


@dataclass(frozen=True)
class GlmRun:
    """Settings that a GLM checkpoint was trained with; ``cloze`` is its finetuning task, or None."""

    vocabulary: GlmVocabulary
    tokenizer: GlmTokenizer
    seq_length: int
    block_positions: bool
    cloze: Cloze | None

    @classmethod
    def of(cls, source: Source, options: TokenizerOptions) -> GlmRun:
        """Return the run that trained a checkpoint; ``options`` override its vocabulary files.

        Raises:
            SettingsError: no vocabulary is given, or its type is wrong.
            DataError: vocabulary files are missing or invalid, or do not match the model's ids.
        """
        stored = source.arguments
        cloze = cloze_from_dict(stored["cloze"]) if isinstance(stored.get("cloze"), dict) else None  # type: ignore[arg-type]
        blanks = stored.get("blanks")
        settings: Mapping[str, Any] = blanks if isinstance(blanks, dict) else {}
        vocabulary = _vocabulary(source, options, _trained_with(cloze, settings))
        length = stored.get("seq_length")
        return cls(
            vocabulary,
            load_vocabulary(vocabulary),
            length if isinstance(length, int) else source.model.max_positions,
            cloze.block_positions if cloze else bool(settings.get("block_positions", True)),
            cloze,
        )

    def check_fills_blanks(self, path: Path) -> None:
        """Check that the model of ``path`` can fill blanks.

        Raises:
            SettingsError: the model was trained without block positions.
        """
        if not self.block_positions:
            raise SettingsError(
                f"{path}: was trained with --no-block-position, expected block positions for filling blanks — use a "
                "model that has them"
            )

    @property
    def description(self) -> str:
        """Description of the vocabulary, with its files."""
        return f"GLM {self.vocabulary.vocab_file}, {self.vocabulary.merge_file}"


def _trained_with(cloze: Cloze | None, blanks: Mapping[str, Any]) -> tuple[str, str] | None:
    if cloze is not None:
        return cloze.vocabulary.vocab_file, cloze.vocabulary.merge_file
    named = blanks.get("vocabulary")
    return (str(named["vocab_file"]), str(named["merge_file"])) if isinstance(named, dict) else None


def _vocabulary(source: Source, options: TokenizerOptions, trained: tuple[str, str] | None) -> GlmVocabulary:
    if options.type not in (None, "GPT2BPETokenizer"):
        raise SettingsError(f"--tokenizer-type: {options.type}, expected GPT2BPETokenizer for GLM — leave it out")
    folder = source.tokenizer or source.path
    beside = folder / "vocab.json", folder / "merges.txt"
    if options.vocab_file and options.merge_file:
        files: tuple[str, str] | None = (options.vocab_file, options.merge_file)
    elif options.vocab_file or options.merge_file:
        raise SettingsError("--vocab-file, --merge-file: one is given, expected both for GLM — add the other")
    elif all(one.is_file() for one in beside):
        files = (str(beside[0]), str(beside[1]))
    else:
        files = trained
    if files is None:
        raise SettingsError(
            f"{source.path}: names no vocabulary, expected GPT-2's vocab.json and merges.txt — pass --vocab-file and "
            "--merge-file"
        )
    ids, plain = source.model.vocab_size, GlmTokenizer.load(*files)
    masks = _MASKS_BY_EXTRA_IDS.get(ids - plain.vocab_size)
    if masks is None:
        raise DataError(
            f"{files[0]}: {plain.vocab_size} ids with GLM's special tokens, and up to {plain.vocab_size + 3} "
            f"with all masks, expected the {ids} of {source.path} — pass the model's own with --vocab-file and "
            f"--merge-file"
        )
    return GlmVocabulary(*files, *masks)
