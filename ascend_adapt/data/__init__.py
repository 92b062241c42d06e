"""Datasets: text to token files to training samples, in the formats and the order of Megatron and its forks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_adapt.data.blending import weights_by_documents
    from ascend_adapt.data.indexed_dataset import IndexedDataset, sequence_pointers, token_dtype
    from ascend_adapt.data.merging import merge
    from ascend_adapt.data.sample_order import SampleOrder, build_sample_order
    from ascend_adapt.data.samplers import CyclicSampler, ResumableSampler
    from ascend_adapt.data.torch_dataset import GPTDataset, gpt_dataset

# The command line imports this package to list its commands, so it must not import numpy or torch.
_HOMES = {
    "CyclicSampler": "samplers",
    "GPTDataset": "torch_dataset",
    "IndexedDataset": "indexed_dataset",
    "ResumableSampler": "samplers",
    "SampleOrder": "sample_order",
    "build_sample_order": "sample_order",
    "gpt_dataset": "torch_dataset",
    "merge": "merging",
    "sequence_pointers": "indexed_dataset",
    "token_dtype": "indexed_dataset",
    "weights_by_documents": "blending",
}

__all__ = [
    "CyclicSampler",
    "GPTDataset",
    "IndexedDataset",
    "ResumableSampler",
    "SampleOrder",
    "build_sample_order",
    "gpt_dataset",
    "merge",
    "sequence_pointers",
    "token_dtype",
    "weights_by_documents",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
