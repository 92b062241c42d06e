"""Megatron's data helpers in numpy: the GPT functions of the C++ `helpers` of Megatron, its forks and GPT-NeoX.

They are used where the C++ helpers cannot be compiled. Names, arguments, results and types are the same, so samples
have the same order. Functions that only BERT and similar models need raise an error.

Sources: Megatron-LM@v2.5 megatron/data/helpers.cpp, Megatron-LM@core_v0.9.0 and @d98e8a64
megatron/core/datasets/helpers.cpp, gpt-neox@ea7aefd8 megatron/data/helpers.cpp (signatures).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.blending import exhaustive_blend_order, fill_blend
from ascend_adapt.data.sample_order import build_sample_index, samples_available
from ascend_adapt.errors import DataError


def helpers_module(name: str, *, sample_index_dtype: str = "int32") -> ModuleType:
    """Return a module called ``name`` with the helpers' functions.

    Args:
        sample_index_dtype: dtype of build_sample_idx without a suffix: int64 in core_v0.9 and deepspeedai's
            Megatron-DeepSpeed@4efb479d, int32 in Megatron up to 23.06, bigscience's fork and GPT-NeoX v2.0.
    """
    module = ModuleType(name, "Megatron's data helpers, by ascend_adapt.")
    plain = np.dtype(sample_index_dtype)

    def build_sample_idx(*arguments: Any) -> NDArray[Any]:
        return _sample_index(plain, *arguments)

    def build_sample_idx_int32(*arguments: Any) -> NDArray[Any]:
        return _sample_index(np.dtype(np.int32), *arguments)

    def build_sample_idx_int64(*arguments: Any) -> NDArray[Any]:
        return _sample_index(np.dtype(np.int64), *arguments)

    functions = (build_sample_idx, build_sample_idx_int32, build_sample_idx_int64)
    for function in (*functions, build_blending_indices, build_exhaustive_blending_indices, build_mapping):
        setattr(module, function.__name__, function)
    module.build_blocks_mapping = build_mapping  # type: ignore[attr-defined]
    return module


def _sample_index(
    dtype: np.dtype[Any],
    sizes: NDArray[Any],
    document_index: NDArray[Any],
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: int = 1,
) -> NDArray[Any]:
    extra = int(add_extra_token_to_sequence)
    samples = samples_available(num_epochs, int(tokens_per_epoch), seq_length, drop_last_partial_sequence, extra)
    index = build_sample_index(sizes, document_index, seq_length, samples, extra)
    if index.dtype.itemsize > dtype.itemsize:
        raise DataError(
            f"build_sample_idx: {len(document_index)} documents over all epochs, expected below 2**31 for {dtype}"
            " — call build_sample_idx_int64, or request fewer epochs"
        )
    return index.astype(dtype, copy=False)


def build_blending_indices(
    dataset_index: NDArray[Any],
    dataset_sample_index: NDArray[Any],
    weights: Any,
    num_datasets: int,
    size: int,
    verbose: bool = False,
) -> None:
    """Write each sample's dataset, and its number in that dataset, into the given arrays, for ``size`` samples."""
    fill_blend(dataset_index, dataset_sample_index, weights[:num_datasets], size)


def build_exhaustive_blending_indices(
    dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], sizes: Any, num_datasets: int
) -> None:
    """Write the order that takes exactly ``sizes`` samples from the datasets into the given arrays."""
    order = exhaustive_blend_order([int(size) for size in sizes[:num_datasets]])
    dataset_index[: len(order[0])], dataset_sample_index[: len(order[1])] = order


def build_mapping(*arguments: Any) -> None:
    """Reject the mapping of BERT, T5 and ICT datasets.

    Raises:
        DataError: in every call.
    """
    raise DataError(
        "build_mapping: called by a BERT, T5 or ICT dataset, expected GPT data — compile Megatron's helpers"
    )
