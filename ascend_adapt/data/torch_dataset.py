"""Datasets of training samples for torch's DataLoader, with samplers that can resume at any sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascend_adapt.data import document_masks
from ascend_adapt.data.blending import blend_order, normalised, parse_blend, samples_to_ask_for
from ascend_adapt.data.index_cache import IndexCache, builds_index_cache
from ascend_adapt.data.index_progress import IndexProgress
from ascend_adapt.data.indexed_dataset import IndexedDataset
from ascend_adapt.data.sample_order import SampleOrder, build_sample_order, find_dialect, split_sequences
from ascend_adapt.data.samplers import CyclicSampler, ResumableSampler
from ascend_adapt.errors import DataError, SettingsError

PARTS = ("train", "valid", "test")
SAMPLERS = {"single": ResumableSampler, "cyclic": CyclicSampler}

# Pads a partial sample; never a token id.
NO_TOKEN = -1


class GPTDataset(torch.utils.data.Dataset[Mapping[str, torch.Tensor]]):
    """Samples of S = seq_length tokens in a given sample order.

    ``[k]`` has tokens, labels and position_ids, int64 [S], and loss_mask, float32 [S]. With reset_attention_mask, it
    also has masked_out, bool [S, S], True where a key is masked. Otherwise the mask is causal.
    """

    def __init__(
        self,
        tokens: IndexedDataset,
        order: SampleOrder,
        *,
        seq_length: int,
        length: int | None = None,
        extra_token: bool = True,
        eod: int | None = None,
        reset_position_ids: bool = False,
        reset_attention_mask: bool = False,
        eod_mask_loss: bool = False,
    ):
        if eod is None and (reset_position_ids or reset_attention_mask or eod_mask_loss):
            raise SettingsError(
                "eod: None, expected the end-of-document id, which resetting and masking need — pass eod="
            )
        self.tokens = tokens
        self.order = order
        self.seq_length = seq_length
        self._length = len(order.shuffle_index) if length is None else length
        self._extra = int(extra_token)
        self._position_eod = eod if reset_position_ids else None
        self._attention_eod = eod if reset_attention_mask else None
        self._hides_documents = reset_attention_mask
        self._loss_eod = eod if eod_mask_loss else None

    def __len__(self) -> int:
        return self._length

    def sample(self, k: int) -> NDArray[np.int64]:
        """Return the tokens of the k-th sample, int64 [seq_length + 1], or [seq_length] without the extra token.

        Raises:
            IndexError: the sample does not exist, or the index does not belong to the token files.
        """
        if not -len(self) <= k < len(self):
            raise IndexError(f"{self.tokens.prefix}: sample {k}, expected a number below {len(self)}")
        number = int(self.order.shuffle_index[k % len(self)])
        (first, begin), (last, end) = self.order.sample_index[number : number + 2].tolist()
        parts = []
        for place in range(first, last + 1):
            offset = begin if place == first else 0
            length = end + self._extra - offset if place == last else None
            parts.append(self.tokens.get(int(self.order.document_index[place]), offset, length))
        found = np.concatenate(parts).astype(np.int64)
        missing = self.seq_length + self._extra - len(found)
        return np.concatenate([found, np.full(missing, NO_TOKEN)]) if missing > 0 else found

    def __getitem__(self, k: int) -> Mapping[str, torch.Tensor]:
        text = self.sample(k)
        tokens, labels = (text[:-1], text[1:]) if self._extra else (text, np.append(text[1:], NO_TOKEN))
        counts = document_masks.loss_mask(tokens, self._loss_eod)
        counts[labels == NO_TOKEN] = 0.0
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.where(tokens == NO_TOKEN, 0, tokens),
            "labels": np.where(labels == NO_TOKEN, 0, labels),
            "position_ids": document_masks.position_ids(tokens, self._position_eod),
            "loss_mask": counts,
        }
        if self._hides_documents:
            arrays["masked_out"] = document_masks.masked_out(tokens, self._attention_eod)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class BlendedDataset(torch.utils.data.Dataset[Mapping[str, torch.Tensor]]):
    """Samples of several datasets in the order of a blend."""

    def __init__(self, datasets: Sequence[GPTDataset], dataset_index: NDArray[Any], numbers: NDArray[Any]):
        self.datasets = datasets
        self._dataset_index = dataset_index
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._dataset_index)

    def __getitem__(self, k: int) -> Mapping[str, torch.Tensor]:
        return self.datasets[int(self._dataset_index[k])][int(self._numbers[k])]


def gpt_dataset(
    data_path: str | Sequence[str],
    *,
    seq_length: int,
    num_samples: Sequence[int | None],
    part: str = "train",
    split: str = "969,30,1",
    seed: int = 1234,
    dialect: str = "megatron-v2",
    dataloader_type: str = "single",
    consumed_samples: int = 0,
    micro_batch_size: int = 1,
    data_parallel_rank: int = 0,
    data_parallel_size: int = 1,
    rank: int = 0,
    local_rank: int = 0,
    shared_storage: bool = True,
    cache: str | os.PathLike[str] | None = None,
    drop_last_partial_sequence: bool = True,
    extra_token: bool = True,
    eod: int | None = None,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    eod_mask_loss: bool = False,
) -> tuple[GPTDataset | BlendedDataset, ResumableSampler]:
    """Return one part of a split in the sample order of ``dialect``, and a sampler that starts at ``consumed_samples``.

    Args:
        data_path: a prefix of token files, or Megatron's list of alternating weights and prefixes.
        dataloader_type: "single" follows the order of ``dialect`` once, "cyclic" shuffles the samples again in each
            epoch.
        num_samples: number of samples for train, valid and test, on which the order depends; None for one epoch.
        cache: the folder of the index cache, by default a folder next to the token files.
        shared_storage: whether all hosts see the same cache; otherwise one rank per host builds it.

    Raises:
        DataError: the token files or the cache are invalid, or too small for one sample.
        SettingsError: an argument is invalid.
    """
    rules = find_dialect(dialect)
    _check_choices(part, num_samples, dataloader_type)
    weights, prefixes = parse_blend([data_path] if isinstance(data_path, str) else list(data_path))
    weights = normalised(weights, one_by_one=not rules.splits_at_bookends)
    wanted = num_samples[PARTS.index(part)]
    options = {
        "seq_length": seq_length,
        "seed": seed,
        "dialect": dialect,
        "drop_last_partial_sequence": drop_last_partial_sequence or part != "valid",
        "extra_token": extra_token,
    }
    builds = builds_index_cache(rank, local_rank, shared_storage)
    progress = IndexProgress(prints=builds)
    datasets = []
    for number, (weight, prefix) in enumerate(zip(weights, prefixes, strict=True), 1):
        progress(f"{part} samples of {prefix} ({number} of {len(prefixes)})")
        tokens = IndexedDataset(prefix)
        asked = wanted if wanted is None or len(prefixes) == 1 else samples_to_ask_for(wanted, weight)
        if asked is not None:
            # Without this, a run with just enough text would lack the hidden last sample.
            asked += rules.hides_last_sample
        order = _cached_order(
            progress,
            IndexCache(cache or f"{prefix}_index_cache", builds=builds),
            tokens,
            _sequences(tokens, part, split, dialect),
            {**options, "num_samples": asked},
        )
        datasets.append(
            GPTDataset(
                tokens,
                order,
                seq_length=seq_length,
                length=len(order.shuffle_index) - rules.hides_last_sample,
                extra_token=extra_token,
                eod=eod,
                reset_position_ids=reset_position_ids,
                reset_attention_mask=reset_attention_mask,
                eod_mask_loss=eod_mask_loss,
            )
        )
    dataset: GPTDataset | BlendedDataset = datasets[0]
    if len(datasets) > 1:
        # Megatron-core blends the requested number of samples, and other code bases all samples of all datasets.
        size = wanted if rules.splits_at_bookends and wanted is not None else sum(map(len, datasets))
        folder = cache or Path(prefixes[0]).with_name("blend_index_cache")
        dataset = _blended(progress, IndexCache(folder, builds=builds), datasets, weights, size)
    return dataset, SAMPLERS[dataloader_type](
        len(dataset),
        consumed_samples=consumed_samples,
        micro_batch_size=micro_batch_size,
        data_parallel_rank=data_parallel_rank,
        data_parallel_size=data_parallel_size,
    )


def _check_choices(part: str, num_samples: Sequence[int | None], dataloader_type: str) -> None:
    if part not in PARTS or len(num_samples) != len(PARTS):
        raise SettingsError(
            f"part {part!r} with {len(num_samples)} sample numbers, expected one of {', '.join(PARTS)} and a number "
            "for each — None stands for one epoch"
        )
    if dataloader_type not in SAMPLERS:
        raise SettingsError(f"dataloader_type: {dataloader_type!r}, expected single or cyclic — as in Megatron")


def _sequences(tokens: IndexedDataset, part: str, split: str, dialect: str) -> range:
    sequences = split_sequences(split, len(tokens), dialect)[PARTS.index(part)]
    if not sequences:
        raise DataError(
            f"{tokens.prefix}: no sequence in {part} by --split {split}, expected some of its {len(tokens)} — "
            "give that part a larger share"
        )
    return sequences


def _blended(
    progress: IndexProgress,
    cache: IndexCache,
    datasets: Sequence[GPTDataset],
    weights: Sequence[float],
    size: int,
) -> BlendedDataset:
    # Normalised twice, as upstream does: in the function that parses the arguments, and in the class that blends.
    shares = normalised(weights, one_by_one=False)

    def blended(samples: int) -> None:
        progress(f"blending {len(datasets)} token files, {samples / size:.0%} of {size} samples")

    blend = cache.load(
        {"blend": shares, "size": size},
        lambda: dict(zip(("datasets", "numbers"), blend_order(shares, size, blended), strict=True)),
    )
    return BlendedDataset(datasets, blend["datasets"], blend["numbers"])


def _cached_order(
    progress: IndexProgress, cache: IndexCache, tokens: IndexedDataset, sequences: range, options: dict[str, Any]
) -> SampleOrder:
    sizes = np.asarray(tokens.sizes)
    description = {
        "sizes": hashlib.sha256(sizes.data).hexdigest(),
        "sequences": [sequences.start, sequences.stop],
        **options,
    }

    def build() -> dict[str, NDArray[Any]]:
        items = max(options["num_samples"] or 0, len(sequences))
        progress(f"building the order of {items} samples or documents of {tokens.prefix}", items)
        order = build_sample_order(sizes, np.arange(sequences.start, sequences.stop), **options)
        indices = {"document_index": order.document_index, "sample_index": order.sample_index}
        return {**indices, "shuffle_index": order.shuffle_index, "epochs": np.array(order.epochs)}

    arrays = dict(cache.load(description, build))
    return SampleOrder(
        arrays["document_index"], arrays["sample_index"], arrays["shuffle_index"], epochs=int(arrays["epochs"])
    )
