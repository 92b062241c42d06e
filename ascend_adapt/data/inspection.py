"""Summary of a pair of token files, for `ascend-adapt inspect`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ascend_adapt.data.indexed_dataset import IndexedDataset, bin_path, idx_path


def inspect(prefix: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the format, counts, distribution of sizes, and first tokens of the token files ``prefix``.

    Raises:
        DataError: the token files cannot be read.
    """
    data = IndexedDataset(prefix)
    documents = len(data.doc_idx) - 1
    return {
        "prefix": data.prefix,
        "format": data.index.kind,
        "multimodal": data.modes is not None,
        "dtype": data.dtype.name,
        "documents": documents,
        "sequences": len(data),
        "tokens": len(data.tokens),
        "empty_sequences": int((data.sizes == 0).sum()),
        "empty_documents": int((np.diff(data.doc_idx) == 0).sum()),
        "tokens_per_sequence": _size_statistics(data),
        "largest_token": _largest(data.tokens),
        "bin_bytes": bin_path(prefix).stat().st_size,
        "idx_bytes": idx_path(prefix).stat().st_size,
        "first_tokens": data[0][:16].tolist() if len(data) else [],
    }


def _size_statistics(data: IndexedDataset) -> dict[str, float] | None:
    if not len(data):
        return None
    sizes = np.asarray(data.sizes)
    return {
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "mean": float(sizes.mean()),
        "max": int(sizes.max()),
    }


def _largest(tokens: np.ndarray[Any, Any], chunk: int = 1 << 24) -> int | None:
    parts = (int(tokens[begin : begin + chunk].max()) for begin in range(0, len(tokens), chunk))
    return max(parts, default=None)
