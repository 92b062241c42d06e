"""Fused attention whose dropout uses a code base's RNG tracker."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any


def attention_with_dropout(
    query: Any, key: Any, value: Any, *, dropout_p: float, rng: str | None, **options: Any
) -> Any:
    """Attention [B, N, S, D] of query, key and value [B, N, S, D].

    Dropout draws from the RNG tracker of the module ``rng``, or from the current generator if ``rng`` is None.
    """
    from ascend_adapt.kernels import attention

    fork = importlib.import_module(rng).get_cuda_rng_tracker().fork() if rng and dropout_p else contextlib.nullcontext()
    with fork:
        return attention(query, key, value, dropout_p=dropout_p, **options)
