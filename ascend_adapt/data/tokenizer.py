"""Tokenizers by --tokenizer-type, and the choice of their engine.

Sources: Megatron-LM@core_v0.9.0 megatron/training/tokenizer/tokenizer.py, gpt-neox@9610391a and @ea7aefd8
megatron/tokenizer/tokenizer.py (which files, which end of document, which vocabulary size).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt import regular_files
from ascend_adapt.data.encoders import (
    CharLevelEncoder,
    CheckedEncoder,
    Encoder,
    GigatokenEncoder,
    HFEncoder,
    SentencePieceEncoder,
    TiktokenEncoder,
    check_same_ids,
)
from ascend_adapt.errors import DataError, SettingsError, not_installed, one_line

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
LARGEST_FILE = 256 << 20
"""Maximum size of a tokenizer's file in bytes: several times the 33 MB of a vocabulary of 262,144 ids."""
ENGINES = ("auto", "hf", "gigatoken", "tiktoken")

# Texts in which engines may differ: contractions, digits, runs of spaces and line ends, scripts, emoji, special tokens.
PROBE = [
    "",
    " ",
    "Hello world",
    "I'm sure they'LL've 'quoted'  it\u2019s",
    "a  b   c\n\n\n  d\t\te \r\n f\u00a0g\u3000h",
    "3.14159 x=12345678901234567890; ½ ² Ⅷ ٣",
    "naïve café ﬁ Å A\u030a \u200b\u200d",
    "你好，世界。こんにちは 안녕 Привет שלום नमस्ते ไทย",
    "😀👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 \U0010ffff \x00\x01\x7f",
    f"one{END_OF_TEXT}two <|padding|> <s></s> {END_OF_TEXT}",
    "def f(x):\n    return [i**2 for i in range(x)]  # ok\n" * 3,
    "http://example.com/?a=b&c=%20d#e_f-g",
]


@dataclass(frozen=True)
class TokenizerRequest:
    """Request for a tokenizer: its type, files and engine.

    ``threads`` is the number of threads of engines that start threads. ``proven`` engines are not compared with the
    reference again.
    """

    type: str
    vocab_file: str | None = None
    merge_file: str | None = None
    engine: str = "auto"
    threads: int = 1
    proven: bool = False


@dataclass(frozen=True)
class LoadedTokenizer:
    """An encoder with its vocabulary size (unpadded), its end-of-document id, and the name of its engine.

    ``decode`` returns the text of ids, in which bytes that are not UTF-8 become U+FFFD.
    """

    encoder: Encoder
    vocab_size: int
    eod: int | None
    engine: str
    decode: Callable[[Sequence[int]], str]


def load_tokenizer(request: TokenizerRequest, sample: list[str] | None = None) -> LoadedTokenizer:
    """Return the requested tokenizer, after comparing its engine with the reference on PROBE and ``sample``.

    Raises:
        DataError: a file or library is missing or invalid, or the engine gives different ids.
        SettingsError: the type is unknown, or needs other files.
    """
    if request.type not in TYPES:
        raise SettingsError(
            f"--tokenizer-type: {request.type!r}, expected one of {', '.join(TYPES)} — HFTokenizer takes any "
            "tokenizer.json"
        )
    if request.engine not in ENGINES:
        raise SettingsError(
            f"--engine: {request.engine!r}, expected one of {', '.join(ENGINES)} — leave it out for auto"
        )
    return TYPES[request.type](request, sample or [])


def _byte_level_bpe(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    tokenizers = _library("tokenizers", request)
    vocab_file, merge_file = _file(request, "vocab_file"), _file(request, "merge_file")
    _refuse_ambiguous_merges(Path(merge_file))
    tokenizer = _of_vocabulary_and_merges(tokenizers, vocab_file, merge_file)

    def tiktoken_encoder() -> Encoder:
        return TiktokenEncoder(_gpt2_encoding(Path(vocab_file), Path(merge_file), request))

    return _loaded(tokenizer, *_choose(request, tokenizer, sample, tiktoken_encoder))


def _loaded(tokenizer: tokenizers.Tokenizer, encoder: Encoder, engine: str) -> LoadedTokenizer:
    eod = tokenizer.token_to_id(END_OF_TEXT)

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    return LoadedTokenizer(encoder, tokenizer.get_vocab_size(), eod, engine, decode)


def _of_vocabulary_and_merges(library: Any, vocab_file: str, merge_file: str) -> tokenizers.Tokenizer:
    tokenizer: tokenizers.Tokenizer = library.Tokenizer(
        _parsed(vocab_file, library.models.BPE.from_file, vocab_file, merge_file)
    )
    missing = [letter for letter in byte_alphabet() if tokenizer.token_to_id(letter) is None]
    if missing:
        # The library would silently drop text with these bytes, and Megatron would encode it as id 0.
        raise DataError(
            f"{vocab_file}: {len(missing)} of the 256 byte symbols are missing, such as {missing[0]!r}, expected "
            "all of them — is it the vocabulary of a byte-level BPE?"
        )
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def files_read(request: TokenizerRequest) -> list[Path]:
    """Return the files on disk that define this tokenizer."""
    if request.type == "HFGPT2Tokenizer" and request.vocab_file:
        folder = Path(request.vocab_file)
        whole = folder / "tokenizer.json"
        return [whole] if os.path.exists(whole) else [folder / "vocab.json", folder / "merges.txt"]
    return [Path(name) for name in (request.vocab_file, request.merge_file) if name and os.path.isfile(name)]


def _hf(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    file = _file(request, "vocab_file")
    tokenizer = _parsed(file, _library("tokenizers", request).Tokenizer.from_file, file)
    return _of_hf(tokenizer, file, request, sample)


def _hf_gpt2(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    tokenizers = _library("tokenizers", request)
    folder = Path(request.vocab_file or "")
    if request.vocab_file is None or not os.path.isdir(folder):
        raise SettingsError(
            f"--vocab-file: {request.vocab_file!r}, expected a folder with tokenizer.json, or vocab.json and "
            "merges.txt, for HFGPT2Tokenizer — nothing is downloaded here"
        )
    if os.path.exists(folder / "tokenizer.json"):
        file = _of_a_tokenizers_size(str(folder / "tokenizer.json"))
        tokenizer = _parsed(folder, tokenizers.Tokenizer.from_file, file)
    else:
        tokenizer = _of_vocabulary_and_merges(tokenizers, str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.add_special_tokens([END_OF_TEXT, "<|padding|>"])
    return _of_hf(tokenizer, str(folder), request, sample)


def _of_hf(tokenizer: tokenizers.Tokenizer, file: str, request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    for setting, value in (("padding", tokenizer.padding), ("truncation", tokenizer.truncation)):
        if value is not None:
            raise DataError(
                f"{file}: {setting} is {value}, expected none, because it would change documents — remove it"
            )
    # BPE dropout and Unigram sampling give different tokens in each epoch, which token files cannot store.
    for setting in ("dropout", "alpha", "nbest_size"):
        if value := getattr(tokenizer.model, setting, None):
            raise DataError(
                f"{file}: model.{setting} is {value:g}, expected null, as the same text must give the same tokens — "
                "set it to null"
            )
    return _loaded(tokenizer, *_choose(request, tokenizer, sample, None))


def _sentencepiece(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    """Return the encoder of GPT-NeoX's SPMTokenizer, which keeps the model's pieces unchanged."""
    processor = _sentencepiece_model(request)
    eod = processor.piece_to_id(END_OF_TEXT)
    known = processor.id_to_piece(eod) == END_OF_TEXT  # a missing piece gets the id of <unk>
    encoder = SentencePieceEncoder(processor, {})
    decode = _sentencepiece_decode(processor, {})
    return LoadedTokenizer(encoder, len(processor), eod if known else None, "sentencepiece", decode)


def _megatron_sentencepiece(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    """Return the encoder of Megatron's SentencePieceTokenizer. Missing special tokens get ids after the model's."""
    processor = _sentencepiece_model(request)
    pieces = [processor.id_to_piece(number) for number in range(len(processor))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    of_the_model = [
        pieces[number] if number >= 0 else name
        for number, name in (
            (processor.pad_id(), "<PAD>"),
            (processor.bos_id(), "<BOS>"),
            (processor.eos_id(), "<EOS>"),
        )
    ]
    special_tokens = {}
    for token in ("<CLS>", "<SEP>", "<EOD>", "<MASK>", *of_the_model):
        special_tokens[token] = vocabulary.setdefault(token, len(vocabulary))
    encoder = SentencePieceEncoder(processor, special_tokens)
    decode = _sentencepiece_decode(processor, special_tokens)
    return LoadedTokenizer(encoder, len(vocabulary), special_tokens["<EOD>"], "sentencepiece", decode)


def _sentencepiece_decode(processor: Any, special_tokens: dict[str, int]) -> Callable[[Sequence[int]], str]:
    names = {number: name for name, number in special_tokens.items()}

    def decode(ids: Sequence[int]) -> str:
        runs = groupby(ids, key=names.get)
        return "".join(name * len(list(run)) if name else processor.decode(list(run)) for name, run in runs)

    return decode


def _sentencepiece_model(request: TokenizerRequest) -> Any:
    _refuse_engine(request, "sentencepiece")
    file = _file(request, "vocab_file")
    return _parsed(file, lambda: _library("sentencepiece", request).SentencePieceProcessor(model_file=file))


def _tiktoken(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    if request.engine not in ("auto", "tiktoken"):
        _refuse_engine(request, "tiktoken")
    tiktoken = _library("tiktoken", request)
    name = request.vocab_file or ""
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(tiktoken.list_encoding_names())
        raise SettingsError(f"--vocab-file: {name!r}, expected one of tiktoken's encodings — pass {known}")
    encoding = _parsed(name, tiktoken.get_encoding, name)
    return LoadedTokenizer(TiktokenEncoder(encoding), encoding.n_vocab, encoding.eot_token, "tiktoken", encoding.decode)


def _char_level(request: TokenizerRequest, sample: list[str]) -> LoadedTokenizer:
    _refuse_engine(request, "bytes")

    # GPT-NeoX builds this tokenizer with 512 ids; the byte 0 ends a document.
    def decode(ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number < 256).decode("utf-8", "replace")

    return LoadedTokenizer(CharLevelEncoder(), 512, 0, "bytes", decode)


TYPES: dict[str, Callable[[TokenizerRequest, list[str]], LoadedTokenizer]] = {
    "GPT2BPETokenizer": _byte_level_bpe,
    "HFTokenizer": _hf,
    "HFGPT2Tokenizer": _hf_gpt2,
    "SPMTokenizer": _sentencepiece,
    "SentencePieceTokenizer": _megatron_sentencepiece,
    "TiktokenTokenizer": _tiktoken,
    "CharLevelTokenizer": _char_level,
}


def _choose(
    request: TokenizerRequest,
    tokenizer: tokenizers.Tokenizer,
    sample: list[str],
    tiktoken_encoder: Callable[[], Encoder] | None,
) -> tuple[Encoder, str]:
    """Return the encoder for ``tokenizer``. A requested engine must work, while `auto` falls back to hf."""
    reference = HFEncoder(tokenizer)
    engine = request.engine
    if engine == "auto":
        engine = "gigatoken" if importlib.util.find_spec("gigatoken") else "hf"
    if engine == "hf":
        return reference, "hf"
    if engine == "tiktoken" and tiktoken_encoder is None:
        raise SettingsError(
            f"--engine: 'tiktoken' for {request.type}, expected hf or gigatoken — it needs vocabulary and merges"
        )
    _library(engine, request)
    try:
        encoder: Encoder = (
            tiktoken_encoder()
            if engine == "tiktoken" and tiktoken_encoder
            else GigatokenEncoder(tokenizer, request.threads)
        )
        if not request.proven:
            check_same_ids(encoder, reference, [*PROBE, *sample], engine)
    except (DataError, ValueError, RuntimeError, NotImplementedError) as error:
        if request.engine == "auto":
            return reference, "hf"
        if isinstance(error, DataError):
            raise
        raise DataError(f"engine {engine}: {one_line(error)} — use --engine hf") from error
    return CheckedEncoder(encoder, reference, engine), engine


def _refuse_ambiguous_merges(merge_file: Path) -> None:
    """Reject merges that only Megatron reads differently: it drops the first line, and a last line without a break."""
    lines: bytes = _parsed(merge_file, merge_file.read_bytes)
    if not lines.startswith(b"#version") or not lines.endswith(b"\n"):
        raise DataError(
            f"{merge_file}: expected '#version' in the first line and a line break at the end — add what is missing"
        )


def _gpt2_encoding(vocab_file: Path, merge_file: Path, request: TokenizerRequest) -> Any:
    """Return tiktoken's encoding of a byte-level BPE. Its merges must be in the order of ids."""
    vocabulary: dict[str, int] = json.loads(regular_files.read_text(vocab_file))
    merges = [
        line.split(" ") for line in regular_files.read_text(merge_file).split("\n") if not line.startswith("#version")
    ]
    merged = ["".join(pair) for pair in merges if len(pair) == 2]
    alphabet = byte_alphabet()
    ranks = {piece: vocabulary[piece] for piece in (*alphabet, *merged) if piece in vocabulary}
    order = [ranks[piece] for piece in merged if piece in ranks]
    if len(order) < len(merged) or any(left >= right for left, right in zip(order, order[1:], strict=False)):
        raise DataError(f"engine tiktoken: the ids of {vocab_file} do not follow the merges — use --engine hf")
    tiktoken = _library("tiktoken", request)
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=importlib.import_module("tiktoken_ext.openai_public").r50k_pat_str,
        mergeable_ranks={bytes(alphabet[letter] for letter in piece): rank for piece, rank in ranks.items()},
        special_tokens={},
    )


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each letter in a byte-level vocabulary.

    The letter of a printable byte is the byte itself. The other bytes have the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _refuse_engine(request: TokenizerRequest, works_by: str) -> None:
    if request.engine != "auto":
        raise SettingsError(
            f"--engine: {request.engine!r} for {request.type}, expected auto — it is encoded by {works_by}"
        )


def _file(request: TokenizerRequest, field: str) -> str:
    path = getattr(request, field)
    if path is None:
        option = f"--{field.replace('_', '-')}"
        raise SettingsError(f"{option}: not given, expected a file for {request.type} — add {option} FILE")
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file, expected a file for {request.type} — check --{field.replace('_', '-')}")
    return _of_a_tokenizers_size(str(path))


def _of_a_tokenizers_size(path: str) -> str:
    """Return the path of a file if its size is plausible. The library would end the process if memory ran out."""
    if (size := os.path.getsize(path)) > LARGEST_FILE:
        raise DataError(f"{path}: {size} bytes, expected at most {LARGEST_FILE} — is it the file of this tokenizer?")
    return path


# The extra of ascend_adapt that installs each library.
_EXTRAS = {"tokenizers": "data", "gigatoken": "data-fast", "tiktoken": "data-all", "sentencepiece": "data-all"}


def _library(name: str, request: TokenizerRequest) -> Any:
    try:
        if name == "tokenizers":
            importlib.import_module("tokenizers.decoders")
            importlib.import_module("tokenizers.models")
            importlib.import_module("tokenizers.pre_tokenizers")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise DataError(not_installed(name, request.type, _EXTRAS[name])) from error
    except ImportError as error:
        raise DataError(f"{request.type}: {one_line(error)}, expected a working {name} — reinstall it") from error


def _parsed(what: Any, parse: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``parse(*arguments)``. The libraries raise a bare Exception for an unreadable file."""
    try:
        return parse(*arguments)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{what}: cannot be loaded ({one_line(error)}) — is it the file of this tokenizer?") from error
