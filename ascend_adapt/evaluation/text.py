"""Conversion between text and token ids, with the tokenizer of a checkpoint or one given by options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.checkpoint.source import Source
from ascend_adapt.data.tokenizer import TYPES, LoadedTokenizer, TokenizerRequest, files_read, load_tokenizer
from ascend_adapt.errors import DataError, SettingsError


@dataclass(frozen=True)
class TokenizerOptions:
    """Tokenizer options of the command line; they override those of the checkpoint."""

    type: str | None = None
    vocab_file: str | None = None
    merge_file: str | None = None


class TextTokenizer:
    """A tokenizer for single texts, checked against the vocabulary of the model."""

    def __init__(self, loaded: LoadedTokenizer, description: str, eod: int | None) -> None:
        self.loaded, self.description, self.eod = loaded, description, eod

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [int(number) for number in self.loaded.encoder.encode([text])[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.loaded.decode(ids)

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the ids of a context and of the continuation after it, tokenized as one text, as lm-eval does.

        Spaces at the end of the context belong to the continuation. An empty context becomes the end-of-document token.

        Raises:
            DataError: the context is empty, and the tokenizer has no end-of-document token.
        """
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        if not bare:
            return [self.first()], self.encode(continuation)
        whole, before = self.encode(bare + continuation), self.encode(bare)
        return whole[: len(before)], whole[len(before) :]

    def first(self) -> int:
        """Return the end-of-document token, which is the context of a text's first token.

        Raises:
            DataError: the tokenizer has no end-of-document token.
        """
        if self.eod is None:
            raise DataError(
                f"{self.description}: has no end-of-document token, expected one as the context of a text's first "
                "token — pass a tokenizer that has one with --tokenizer-type and --vocab-file"
            )
        return self.eod


def tokenizer_of(source: Source, options: TokenizerOptions) -> TextTokenizer:
    """Return the tokenizer given by ``options``, else that of the checkpoint, else that of its training run.

    Raises:
        SettingsError: no tokenizer is found.
        DataError: tokenizer files are missing or invalid, or have more ids than the model.
    """
    request = _of_options(options) or _of_folder(source.tokenizer or source.path) or _of_arguments(source)
    if request is None:
        raise SettingsError(
            f"{source.path}: has no tokenizer, expected tokenizer.json, vocab.json with merges.txt, or tokenizer.model "
            "there — pass --tokenizer-type, --vocab-file and --merge-file, as for preprocess"
        )
    loaded = load_tokenizer(request)
    description = f"{request.type} {', '.join(map(str, files_read(request))) or request.vocab_file or ''}".strip()
    if loaded.vocab_size > source.model.padded_vocab_size:
        raise DataError(
            f"{description}: {loaded.vocab_size} ids, expected at most the {source.model.padded_vocab_size} rows of "
            f"{source.path} — pass the model's own tokenizer with --tokenizer-type and --vocab-file"
        )
    eod = loaded.eod if loaded.eod is not None else _end_in_config(source)
    return TextTokenizer(loaded, description, eod)


def _of_options(options: TokenizerOptions) -> TokenizerRequest | None:
    if options.type is None and options.vocab_file is None and options.merge_file is None:
        return None
    likely = "GPT2BPETokenizer" if options.merge_file else "HFTokenizer"
    return TokenizerRequest(options.type or likely, options.vocab_file, options.merge_file)


def _of_folder(folder: Path) -> TokenizerRequest | None:
    if (folder / "tokenizer.json").is_file():
        return TokenizerRequest("HFTokenizer", str(folder / "tokenizer.json"))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return TokenizerRequest("GPT2BPETokenizer", str(folder / "vocab.json"), str(folder / "merges.txt"))
    if (folder / "tokenizer.model").is_file():
        return TokenizerRequest("SPMTokenizer", str(folder / "tokenizer.model"))
    return None


def _of_arguments(source: Source) -> TokenizerRequest | None:
    """Return the tokenizer of the training run, if its files still exist."""
    kind, vocab, merges = (source.arguments.get(name) for name in ("tokenizer_type", "vocab_file", "merge_file"))
    if kind not in TYPES or (not vocab and kind != "CharLevelTokenizer"):
        return None
    request = TokenizerRequest(str(kind), str(vocab) if vocab else None, str(merges) if merges else None)
    missing = [
        str(one) for one in (vocab, merges) if one and "Tiktoken" not in str(kind) and not Path(str(one)).exists()
    ]
    if missing:
        raise DataError(
            f"{source.path}: was trained with {kind} {', '.join(missing)}, which is missing, expected the files of the "
            "tokenizer — pass --vocab-file and --merge-file"
        )
    return request


def _end_in_config(source: Source) -> int | None:
    """Return the eos_token_id in Hugging Face's config.json, the first one if it is a list."""
    try:
        found = json.loads(regular_files.read_text(source.path / "config.json")).get("eos_token_id")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) else None
