"""Sample loader: the batches of one data-parallel rank, as a pure function of the number of consumed samples."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence

import torch

from ascend_adapt.config.batches import samples_wanted
from ascend_adapt.config.train_config import Data, TrainConfig
from ascend_adapt.data import gpt_dataset, weights_by_documents
from ascend_adapt.errors import DataError
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples.token_files import empty_by_split
from ascend_adapt.native.samples.workers import data_loader, end_workers, owned
from ascend_adapt.native.step.pipeline import Batch
from ascend_adapt.whole_numbers import of_variable

PARTS = ("train", "valid", "test")


class Samples:
    """Micro batches of one part, in order, starting after ``consumed`` samples; call ``close`` to end the workers."""

    def __init__(self, config: TrainConfig, mesh: Mesh, part: str, consumed: int = 0) -> None:
        data = config.data
        self.part, self.device = part, mesh.device
        self._names = ["tokens", "labels", "loss_mask", *(["position_ids"] if data.reset_position_ids else [])]
        paths, split = _source(data, part)
        dataset, sampler = gpt_dataset(
            paths,
            seq_length=data.seq_length,
            num_samples=samples_wanted(config),
            part=part,
            split=split,
            seed=data.seed,
            dialect=data.order,
            dataloader_type=data.sampler,
            consumed_samples=consumed,
            micro_batch_size=config.batch.micro,
            data_parallel_rank=mesh.data_rank,
            data_parallel_size=config.parallel.data,
            rank=mesh.rank,
            local_rank=of_variable(os.environ, "LOCAL_RANK", 0),
            shared_storage=False,
            cache=data.cache,
            drop_last_partial_sequence=data.drop_last_partial_validation,
            eod=data.eod,
            reset_position_ids=data.reset_position_ids,
            reset_attention_mask=data.reset_attention_mask,
            eod_mask_loss=data.eod_mask_loss,
        )
        self._loader = data_loader(dataset, workers=data.num_workers, device=self.device, batch_sampler=sampler)
        self.left = math.inf if data.sampler == "cyclic" else max(sampler.total_samples - consumed, 0)
        """Number of samples left at the start, over all ranks."""
        self._micro_batches: Iterator[Batch] | None = None

    def next(self, micro_batches: int) -> Batch:
        """Return the next micro batches, concatenated along the batch axis, on the device.

        Raises:
            DataError: too few samples are left.
        """
        if self._micro_batches is None:
            self._micro_batches = iter(self._loader)
        parts = []
        for _ in range(micro_batches):
            part = next(self._micro_batches, None)
            if part is None:
                raise DataError(f"{self.part}: no sample is left for the next step — add text, or reduce the steps")
            parts.append(owned(part))
        names = [*self._names, *(["masked_out"] if "masked_out" in parts[0] else [])]
        # torch.cat returns pageable memory; to_device pins it, so that the host does not wait for the copy.
        batch = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in names}
        return {name: devices.to_device(batch[name], self.device) for name in names}

    def close(self) -> None:
        """End the workers."""
        end_workers(self._micro_batches)


def is_evaluated(config: TrainConfig, part: str) -> bool:
    """Return whether the run evaluates on a part: evaluation is on, and the part has token files or a share that
    is not empty."""
    data = config.data
    if config.cloze is not None or not (config.eval_interval and config.eval_iterations):
        return False
    own = {"valid": data.valid, "test": data.test}[part]
    if own or (data.blanks is None and (data.valid or data.test)):
        return bool(own)
    shares = [float(share) for share in re.split("[,/]", data.split)]
    number = PARTS.index(part)
    return number < len(shares) and shares[number] > 0 and part not in empty_by_split(data)


def _source(data: Data, part: str) -> tuple[Sequence[str], str]:
    """Return the token files of a part, and the split that selects it."""
    own = {"train": data.train, "valid": data.valid, "test": data.test}[part]
    if data.valid or data.test:
        split = ",".join("1" if part == one else "0" for one in PARTS)
    else:
        own, split = data.train, data.split
    if data.weight_by_documents is None or len(own) < 2:
        return own, split
    weights = weights_by_documents(own, data.weight_by_documents)
    return [word for pair in zip(map(repr, weights), own, strict=True) for word in pair], split
