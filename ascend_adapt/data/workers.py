"""Tokenizing workers: one or more processes tokenize blocks of lines, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.blocks import Position, TextBlock
from ascend_adapt.data.documents import UTF8, parse_documents, text_cleaner
from ascend_adapt.data.encoders import Encoded
from ascend_adapt.data.memory import give_back_large_blocks
from ascend_adapt.data.tokenizer import ENGINES, LoadedTokenizer, TokenizerRequest, load_tokenizer
from ascend_adapt.errors import DataError

# Bytes of lines in flight per worker. A block with one long line may exceed this; then each worker has one block.
BYTES_IN_FLIGHT = 3_000_000

# More threads would only wait for the GIL, which parsing holds.
MOST_THREADS = 32


@dataclass(frozen=True)
class EncodingRecipe:
    """Options of tokenizing, the same for every block. ``dtype`` is the stored dtype."""

    keys: tuple[str, ...]
    skip_bad_lines: bool
    ftfy: bool
    append_eod: bool
    dtype: np.dtype[Any]
    encoding: str = UTF8


@dataclass(frozen=True)
class Tokens:
    """Tokens of one block: for each key, the tokens [T] and sizes [N] of the documents that are not empty."""

    by_key: list[tuple[NDArray[Any], NDArray[np.int64]]]
    documents: int
    empty: list[int]
    blank: int
    bad: int
    first_bad: list[str]
    end: Position
    text_bytes: int
    bytes_read: int


def tokenize(block: TextBlock, tokenizer: LoadedTokenizer, recipe: EncodingRecipe) -> Tokens:
    """Return the tokens of ``block``.

    Raises:
        DataError: a line is bad and bad lines are not skipped, or the tokenizer fails on a text.
    """
    documents = parse_documents(block, recipe.keys, recipe.skip_bad_lines, text_cleaner(recipe.ftfy), recipe.encoding)
    by_key, empty = [], []
    for texts in documents.texts:
        try:
            tokens, sizes = tokenizer.encoder.encode(texts)
        except DataError:
            raise
        except Exception as error:
            last = block.first_line + block.data.count(b"\n")
            raise DataError(
                f"{block.source}:{block.first_line}-{last}: the tokenizer fails ({error}), expected ids for every text"
                " — remove the text, or use another engine"
            ) from error
        by_key.append(close_documents((tokens, sizes), tokenizer.eod if recipe.append_eod else None, recipe.dtype))
        empty.append(int((sizes == 0).sum()))
    return Tokens(
        by_key=by_key,
        documents=len(documents.texts[0]),
        empty=empty,
        blank=documents.blank,
        bad=documents.bad,
        first_bad=documents.first_bad,
        end=block.end,
        text_bytes=len(block.data) + block.too_long,
        bytes_read=block.bytes_read,
    )


def close_documents(encoded: Encoded, eod: int | None, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return tokens and sizes with empty documents removed and ``eod`` appended to the others.

    Tokens are converted to ``dtype`` if all fit. Otherwise they are unchanged, and UnfinishedTokens.add raises an
    error.
    """
    tokens, sizes = encoded
    if not sizes.all():
        sizes = sizes[sizes > 0]
    limits = np.iinfo(dtype)
    largest = max(int(tokens.max(initial=0)), eod or 0)
    if not (limits.min <= int(tokens.min(initial=0)) and largest <= limits.max):
        dtype = tokens.dtype
    if eod is None:
        return tokens.astype(dtype, copy=False), sizes
    closed = np.empty(len(tokens) + len(sizes), dtype)
    begin = 0
    for number, size in enumerate(sizes.tolist()):
        closed[begin + number : begin + number + size] = tokens[begin : begin + size]
        begin += size
    closed[np.cumsum(sizes + 1) - 1] = eod
    return closed, sizes + 1


class Workers:
    """Tokenizing workers: this process, ``count`` other processes, or threads if the engine releases the GIL."""

    def __init__(self, request: TokenizerRequest, tokenizer: LoadedTokenizer, recipe: EncodingRecipe, count: int):
        give_back_large_blocks()
        self._closing = ExitStack()
        self._run: Callable[[TextBlock], Tokens] = _Here(tokenizer, recipe)
        self._executor: Executor | None = None
        self._stopping: Event | threading.Event = threading.Event()
        self._count = count
        if tokenizer.engine == "gigatoken":
            # A thread is used for one worker too, because this thread reads and writes meanwhile.
            self._executor = ThreadPoolExecutor(min(count, MOST_THREADS))
        elif count > 1:
            self._run = _in_worker
            context = multiprocessing.get_context("spawn")
            # The event starts multiprocessing's resource tracker, which handles Ctrl-C but not SIGHUP.
            with _interrupts_held():
                self._stopping = context.Event()
            self._executor = ProcessPoolExecutor(
                count, context, _start_worker, (_as_chosen(request, tokenizer), recipe, self._stopping)
            )
        if self._executor is not None:
            self._closing.callback(self._executor.shutdown, wait=True, cancel_futures=True)

    def tokens(self, blocks: Iterable[TextBlock]) -> Iterator[Tokens]:
        """Yield the tokens of every block in the order of the blocks.

        Raises:
            DataError: a block is bad, or a worker process died.
        """
        if self._executor is None:
            yield from map(self._run, blocks)
            return
        waiting: deque[tuple[Future[Tokens], int]] = deque()
        try:
            for block in blocks:
                # Signals are for the writing process, with which the worker processes end. Workers inherit the blocked
                # signals; ignoring signals in the worker would be too late, because they may arrive while it still
                # imports modules.
                with _interrupts_held():
                    waiting.append((self._executor.submit(self._run, block), len(block.data)))
                while self._too_many(waiting) or (waiting and waiting[0][0].done()):
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
        except BrokenProcessPool as error:
            raise DataError(
                "workers: a worker process ended without an error message, expected all to run — out of memory? Try "
                "fewer --workers"
            ) from error

    def _too_many(self, waiting: deque[tuple[Future[Tokens], int]]) -> bool:
        size = sum(size for _, size in waiting)
        return len(waiting) > 2 * self._count or (size > self._count * BYTES_IN_FLIGHT and len(waiting) > self._count)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._closing.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_chosen(request: TokenizerRequest, tokenizer: LoadedTokenizer) -> TokenizerRequest:
    """Return ``request`` with the engine that `auto` chose, so that workers do not choose again."""
    engine = tokenizer.engine if tokenizer.engine in ENGINES else request.engine
    return replace(request, engine=engine, proven=True)


@dataclass(frozen=True)
class _Here:
    tokenizer: LoadedTokenizer
    recipe: EncodingRecipe

    def __call__(self, block: TextBlock) -> Tokens:
        return tokenize(block, self.tokenizer, self.recipe)


_of_this_worker: _Here
_stopping: Event


def _start_worker(request: TokenizerRequest, recipe: EncodingRecipe, stopping: Event) -> None:
    global _of_this_worker, _stopping
    threading.Thread(target=_end_with_parent, daemon=True).start()
    give_back_large_blocks()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _of_this_worker = _Here(load_tokenizer(request), recipe)
    _stopping = stopping


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only pool workers start this thread"
    parent.join()
    os._exit(1)


def _in_worker(block: TextBlock) -> Tokens:
    if _stopping.is_set():
        raise CancelledError  # the results of queued blocks are no longer needed
    return _of_this_worker(block)
