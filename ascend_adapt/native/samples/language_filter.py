"""Filter for English documents with fastText's language identification model, which is loaded at the first document."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.glm_tokenizer import GlmTokenizer
from ascend_adapt.errors import DataError, one_line

_TOKENS = 1024


class EnglishOnly:
    """Predicate: whether the first 1024 tokens of a document are English.

    Source: THUDM/GLM@4f61ed72 data_utils/datasets.py (BlockDataset.get_weighted_samples).
    """

    def __init__(self, path: str, tokenizer: GlmTokenizer) -> None:
        self._path, self._tokenizer = path, tokenizer
        self._model: Any = None

    def __call__(self, tokens: NDArray[np.int64]) -> bool:
        if self._model is None:
            self._model = _load(self._path)
        text = self._tokenizer.decode(tokens[:_TOKENS].tolist()).replace("\n", "")
        # Not predict(), which fails with numpy 2.
        return bool(self._model.f.predict(f"{text}\n", 1, 0.0, "strict")[0][1] == "__label__en")


def _load(path: str) -> Any:
    try:
        return importlib.import_module("fasttext").load_model(path)
    except (ImportError, ValueError, OSError) as error:
        raise DataError(
            f"--filter-english: {one_line(error)}, expected fasttext and its model {path} — provide both, or leave the "
            "option out"
        ) from error
