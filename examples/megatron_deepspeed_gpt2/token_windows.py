"""Fixed-length training windows over a range of documents, and the order in which they are read."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from indexed_dataset import IndexedDataset
from torch import Tensor


def split_documents(num_documents: int, split: list[float]) -> list[range]:
    """Consecutive document ranges in the proportions of `split`, such as 949, 50 and 1."""
    bounds = np.rint(np.cumsum([0.0, *split]) / sum(split) * num_documents).astype(int).tolist()
    return [range(first, last) for first, last in zip(bounds, bounds[1:], strict=False)]


class TokenWindows:
    """Micro batches [B, S] of inputs and labels over the concatenated documents; iterating never ends.

    Window k holds seq_length + 1 tokens and begins on the last token of window k - 1. The order of the windows is a
    function of the seed alone: ranks share each B * data_parallel_size of them without changing it.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        documents: range,
        *,
        seq_length: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        seed: int,
    ):
        begin, end = dataset.token_range(documents.start, documents.stop)
        self.tokens = dataset.tokens[begin:end]
        self.seq_length = seq_length
        self.samples_at_once = micro_batch_size * data_parallel_size
        self.mine = slice(data_parallel_rank * micro_batch_size, (data_parallel_rank + 1) * micro_batch_size)
        self.seed = seed

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.seq_length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        samples = self._samples()
        positions = np.arange(self.seq_length + 1)
        while True:
            windows = np.array(list(islice(samples, self.samples_at_once)))[self.mine]
            batch = torch.from_numpy(self.tokens[windows[:, None] * self.seq_length + positions].astype(np.int64))
            yield batch[:, :-1], batch[:, 1:]

    def _samples(self) -> Iterator[int]:
        """Every window once per epoch, each epoch in its own order."""
        order = np.random.RandomState(self.seed)
        while True:
            yield from order.permutation(len(self))
