"""Preprocessing of text into token files: `ascend-adapt preprocess` without its command line."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.data.blocks import Position, TextBlock, read_blocks
from ascend_adapt.data.documents import UTF8, find_encoding, parse_documents, text_cleaner
from ascend_adapt.data.indexed_dataset import token_dtype
from ascend_adapt.data.inputs import STDIN, Input, find_inputs
from ascend_adapt.data.tokenizer import LoadedTokenizer, TokenizerRequest, files_read, load_tokenizer
from ascend_adapt.data.unfinished import Journal, UnfinishedTokens, discard, publish
from ascend_adapt.data.workers import EncodingRecipe, Tokens, Workers
from ascend_adapt.errors import DataError, SettingsError, ran_out, system_error

# Increased whenever the same request may give other bytes, so that no run resumes from an older version's output.
JOURNAL_FORMAT = 1

# Size of a unit of work. Blocks larger than the cache are slower, and gigatoken splits blocks above 1 << 20.
BLOCK_BYTES = 1_000_000

# Amount of text on which an engine is compared with the reference before a run.
SAMPLE_BYTES = 64 << 10


@dataclass(frozen=True)
class PreprocessRequest:
    """A request of `ascend-adapt preprocess`. ``inputs`` are the arguments of --input as typed."""

    inputs: tuple[str, ...]
    output_prefix: str
    tokenizer: TokenizerRequest
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    ftfy: bool = False
    skip_bad_lines: bool = False
    workers: int = 1
    encoding: str = UTF8
    commit_seconds: float = 10.0

    def prefix(self, key: str) -> Path:
        """Prefix of the token files of ``key``, without .bin and .idx."""
        return Path(f"{self.output_prefix}_{key}_document")


@dataclass
class Counts:
    """Counts of a run so far: documents, documents written and without tokens per key, and bad and blank lines."""

    documents: int = 0
    written: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    blank: int = 0
    text_bytes: int = 0
    first_bad: list[str] = field(default_factory=list)

    def add(self, block: Tokens, keys: tuple[str, ...]) -> None:
        """Add the counts of ``block``."""
        self.documents += block.documents
        self.bad += block.bad
        self.blank += block.blank
        self.text_bytes += block.text_bytes
        self.first_bad = (self.first_bad + block.first_bad)[:3]
        for key, (tokens, sizes), empty in zip(keys, block.by_key, block.empty, strict=True):
            self.written[key] = self.written.get(key, 0) + len(sizes)
            self.tokens[key] = self.tokens.get(key, 0) + len(tokens)
            self.empty[key] = self.empty.get(key, 0) + empty


@dataclass(frozen=True)
class DocumentProgress:
    """Progress of a run: ``bytes_read`` of ``bytes_total`` bytes on disk, both 0 if unknown."""

    counts: Counts
    bytes_read: int
    bytes_total: int
    engine: str
    resumed: bool


def preprocess(
    request: PreprocessRequest, report: Callable[[DocumentProgress], None] = lambda progress: None
) -> Counts:
    """Write the token files of ``request`` and return the counts. Resumes an interrupted run of the same request.

    The files depend only on inputs, tokenizer and options, not on workers, engine or interruptions.

    Raises:
        DataError: an input, the tokenizer or the disk fails. No output file is left or changed.
        SettingsError: the request contradicts itself.
    """
    if request.workers < 1:
        raise SettingsError(f"--workers: {request.workers}, expected at least 1 — leave it out for one")
    if len(set(request.keys)) < len(request.keys) or not request.keys:
        raise SettingsError(f"--json-keys: {' '.join(request.keys)}, expected each key once — leave the others out")
    for key in request.keys:
        if not key or "/" in key:
            raise SettingsError(f"--json-keys: {key!r}, expected a name that a file can have — rename the key")
    if not request.commit_seconds >= 0:
        raise SettingsError(f"--commit-interval: {request.commit_seconds}, expected 0 or more — such as 10")
    request = dataclasses.replace(request, encoding=find_encoding(request.encoding))
    inputs = find_inputs(request.inputs, request.keys)
    tokenizer = load_tokenizer(request.tokenizer, _sample(inputs, request))
    if request.append_eod and tokenizer.eod is None:
        raise DataError(
            "--append-eod: the tokenizer has no '<|endoftext|>', expected an end-of-document token — add it, "
            "or leave the option out"
        )
    recipe = EncodingRecipe(
        request.keys,
        request.skip_bad_lines,
        request.ftfy,
        request.append_eod,
        token_dtype(tokenizer.vocab_size),
        request.encoding,
    )
    with _disk_errors(request.output_prefix):
        journal = Journal([request.prefix(key) for key in request.keys], _job(request, inputs))
    run = _Run(request, inputs, tokenizer, recipe, journal, report)
    try:
        with _disk_errors(request.output_prefix):
            return run.to_the_end()
    except (DataError, SettingsError):
        run.discard()
        raise
    except KeyboardInterrupt:
        if not journal.path.exists():
            run.discard()
        raise
    finally:
        journal.close()


class _Run:
    """One run with its open files. The journal keeps the state {position, counts, complete}."""

    def __init__(
        self,
        request: PreprocessRequest,
        inputs: list[Input],
        tokenizer: LoadedTokenizer,
        recipe: EncodingRecipe,
        journal: Journal,
        report: Callable[[DocumentProgress], None],
    ):
        self.request = request
        self.inputs = inputs
        self.tokenizer = tokenizer
        self.recipe = recipe
        self.journal = journal
        self.report = report
        self.prefixes = [request.prefix(key) for key in request.keys]
        self.total = sum(source.size for source in inputs)
        state = journal.state or {}
        self.resumed = bool(state)
        self.complete = bool(state.get("complete"))
        self.position = Position(**state.get("position", {}))
        self.counts = Counts(**state.get("counts", {}))

    def to_the_end(self) -> Counts:
        if not self.resumed:
            discard(self.prefixes)
        if not self.complete:
            with contextlib.ExitStack() as open_files:
                outputs = [
                    self._output(key, prefix) for key, prefix in zip(self.request.keys, self.prefixes, strict=True)
                ]
                for output in outputs:
                    open_files.callback(output.close)
                self._tokenize(outputs)
                self._refuse_empty_output()
                for output in outputs:
                    output.write_index()
            self._commit([], complete=True)
        for prefix in self.prefixes:
            publish(prefix)
        self.discard()
        return self.counts

    def _output(self, key: str, prefix: Path) -> UnfinishedTokens:
        sequences, tokens = self.counts.written.get(key, 0), self.counts.tokens.get(key, 0)
        return UnfinishedTokens(prefix, self.recipe.dtype, sequences=sequences, tokens=tokens)

    def _tokenize(self, outputs: list[UnfinishedTokens]) -> None:
        blocks = read_blocks(self.inputs, BLOCK_BYTES, self.position, skip_long_lines=self.request.skip_bad_lines)
        committed = time.monotonic()
        with Workers(self.request.tokenizer, self.tokenizer, self.recipe, self.request.workers) as workers:
            for block in workers.tokens(blocks):
                for output, (tokens, sizes) in zip(outputs, block.by_key, strict=True):
                    output.add(tokens, sizes)
                self.counts.add(block, self.request.keys)
                self.position = block.end
                self.report(
                    DocumentProgress(self.counts, block.bytes_read, self.total, self.tokenizer.engine, self.resumed)
                )
                if time.monotonic() - committed >= self.request.commit_seconds:
                    self._commit(outputs)
                    committed = time.monotonic()

    def _commit(self, outputs: list[UnfinishedTokens], complete: bool = False) -> None:
        for output in outputs:
            output.flush()
        position, counts = dataclasses.asdict(self.position), dataclasses.asdict(self.counts)
        self.journal.write({"position": position, "counts": counts, "complete": complete})

    def _refuse_empty_output(self) -> None:
        for key in self.request.keys:
            if not self.counts.written.get(key):
                found = f"{self.counts.documents} documents, {self.counts.bad} bad and {self.counts.blank} blank lines"
                raise DataError(
                    f"{', '.join(map(str, self.inputs))}: no document with tokens under {key!r} ({found}), "
                    "expected at least one — check the input"
                )

    def discard(self) -> None:
        discard(self.prefixes)
        self.journal.remove()


def _sample(inputs: list[Input], request: PreprocessRequest) -> list[str]:
    """Return a few documents of the first input, or none if it cannot be read twice or is invalid."""
    if request.tokenizer.engine == "hf" or inputs[0].path == STDIN:
        return []
    try:
        block: TextBlock = next(read_blocks(inputs[:1], SAMPLE_BYTES, Position()))
        documents = parse_documents(block, request.keys, True, text_cleaner(request.ftfy), request.encoding)
    except (DataError, StopIteration):
        return []
    return [text[:SAMPLE_BYTES] for text in documents.texts[0]]


def _job(request: PreprocessRequest, inputs: list[Input]) -> str:
    """Return a digest of everything on which the output depends. Inputs are identified by name, size and mtime."""
    files = [(source.path, source.member, _stamp(source.path)) for source in inputs]
    tokenizer = request.tokenizer
    given = [path for path in (tokenizer.vocab_file, tokenizer.merge_file) if path]
    contents = [hashlib.sha256(regular_files.read_bytes(path)).hexdigest() for path in files_read(tokenizer)]
    # Unique for each run, because standard input cannot be read again.
    once = time.time_ns() if any(source.path == STDIN for source in inputs) else 0
    options: tuple[Any, ...] = (
        request.keys,
        request.append_eod,
        request.ftfy,
        request.skip_bad_lines,
        tokenizer.type,
        once,
    )
    if request.encoding != UTF8:  # omitted, so that runs that were started before --encoding existed can resume
        options = (*options, request.encoding)
    return hashlib.sha256(json.dumps([JOURNAL_FORMAT, files, contents, given, options]).encode()).hexdigest()


def _stamp(path: str) -> tuple[int, int]:
    if path == STDIN:
        return 0, 0
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _disk_errors(prefix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if ran_out(error):
            raise DataError(
                f"preprocess: {system_error(error)}, expected enough memory and processes — try fewer --workers"
            ) from error
        raise DataError(
            f"{error.filename or prefix}: {system_error(error)}, expected a writable file — check --output-prefix"
        ) from error
