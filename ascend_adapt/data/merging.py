"""Merges several token files into one, with their sequences and documents in order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ascend_adapt.data.indexed_dataset import IndexedDataset, bin_path
from ascend_adapt.data.token_index import write_index
from ascend_adapt.data.unfinished import Journal, discard, hidden, publish
from ascend_adapt.errors import DataError, system_error


def merge(prefixes: Sequence[str | os.PathLike[str]], output_prefix: str | os.PathLike[str]) -> tuple[int, int]:
    """Merge the token files ``prefixes`` in order, and return the numbers of documents and tokens.

    Raises:
        DataError: a file cannot be read, dtypes differ, or the output cannot be written. No partial output is left.
    """
    target = Path(output_prefix)
    if not prefixes:
        raise DataError("--input: no token files, expected at least one prefix — pass the prefixes to merge")
    parts = [IndexedDataset(prefix) for prefix in prefixes]
    for part in parts:
        for what, mine, first in (
            ("dtype", part.dtype.name, parts[0].dtype.name),
            ("modes", part.modes is not None, parts[0].modes is not None),
        ):
            if mine != first:
                raise DataError(
                    f"{part.prefix}: {what} {mine}, expected {first} as in {parts[0].prefix} — tokenize both alike"
                )
    sizes = np.concatenate([part.sizes for part in parts])
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    bounds = [part.doc_idx[1:] + first for part, first in zip(parts, firsts.tolist(), strict=False)]
    doc_idx = np.concatenate([np.zeros(1, np.int64), *bounds])
    modes = None if parts[0].modes is None else np.concatenate([part.modes for part in parts if part.modes is not None])
    try:
        journal = Journal([target], "merge")
        try:
            with open(hidden(target, "bin"), "wb") as tokens:
                for part in parts:
                    with open(bin_path(part.prefix), "rb") as source:
                        shutil.copyfileobj(source, tokens, 16 << 20)
                tokens.flush()
                os.fsync(tokens.fileno())
            with open(hidden(target, "idx"), "wb") as index:
                write_index(index, parts[0].dtype, sizes, doc_idx, modes)
                index.flush()
                os.fsync(index.fileno())
            publish(target)
        finally:
            discard([target])
            journal.remove()
    except OSError as error:
        raise DataError(
            f"{error.filename or target}: {system_error(error)}, expected a writable file — check --output-prefix"
        ) from error
    return len(doc_idx) - 1, int(sizes.sum(dtype=np.int64))
