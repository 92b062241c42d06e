"""Asynchronous checkpoint save: copy to host memory, write in a thread, publish when complete.

The format is torch.distributed.checkpoint's; ``folder`` describes how a checkpoint is published.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.errors import TrainingError, one_line
from ascend_adapt.native.checkpoint.folder import PROGRESS, SUMS, CheckpointFolder, checksum
from ascend_adapt.native.checkpoint.state import TrainState, generators, model_state, optimizer_state
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.step.trainer import Trainer


class Saver:
    """Checkpoint saver of a run. Every rank must create one and call its methods in the same order."""

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        token_files: Mapping[str, str] | None = None,
        *,
        weights_only: bool = False,
    ) -> None:
        """Create a saver.

        ``token_files`` are the identities of the training data, from ``token_files.identities``; resuming on other
        files logs a warning. ``weights_only`` omits optimizer and generator states, and keeps only the latest
        checkpoint.
        """
        self.trainer, self.folder, self._weights_only = trainer, CheckpointFolder(folder), weights_only
        self._token_files = dict(token_files or {})
        self._group = HostGroup(trainer.mesh)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[None] | None = None

    def save(self, progress: TrainState) -> Path:
        """Begin to save a checkpoint of the current state, and return its path.

        Waits until the previous checkpoint is written, and without ``asynchronous`` until this one is written.

        Raises:
            TrainingError: a checkpoint could not be written; earlier ones are unchanged.
        """
        self.wait()
        config = self.trainer.config.checkpoint
        state = model_state(self.trainer)
        if config.save_optimizer and not self._weights_only:
            state |= optimizer_state(self.trainer)
        if config.save_rng and not self._weights_only:
            state |= generators(self.trainer.mesh)
        copied = BlockingAsyncStager().stage(state)
        self._running = self._thread.submit(self._write, copied, progress, self._metadata(progress))
        if not config.asynchronous:
            self.wait()
        return self.folder.of(progress.iteration)

    def check(self) -> None:
        """Raise the error of ``save`` if the last checkpoint has failed, without waiting for a running save."""
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raises like ``save``."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the thread; a failed save is not raised."""
        self._thread.shutdown()

    def _metadata(self, progress: TrainState) -> str:
        trainer = self.trainer
        metadata: dict[str, Any] = {**asdict(progress), "loss_scale": trainer.scaler.state_dict()}
        return json.dumps({**metadata, "token_files": self._token_files, "config": to_dict(trainer.config)}, indent=1)

    def _write(self, state: dict[str, Any], progress: TrainState, metadata: str) -> None:
        iteration, group = progress.iteration, self._group
        keep_last = 1 if self._weights_only else self.trainer.config.checkpoint.keep_last
        aside = self.folder.aside(iteration)
        try:
            group.on_first(lambda: self.folder.begin(iteration))
            writer = dcp.FileSystemWriter(aside, sync_files=True)
            dcp.save(state, storage_writer=writer, process_group=group.process_group, no_dist=not dist.is_initialized())
            sums = {name: value for each in group.together(lambda: self._sums(aside)) for name, value in each.items()}
            group.on_first(lambda: self.folder.publish(iteration, metadata, sums, keep_last))
        except (TrainingError, OSError, RuntimeError, dcp.CheckpointException) as error:
            if group.rank == 0:
                self.folder.abandon(iteration)
            # torch's archive writer does not report that a disk is full, so the message states the free space.
            why = f"{_reason(error)}; {_free(self.folder.path)}"
            raise TrainingError(
                f"{self.folder.of(iteration)}: not saved ({why}), the latest complete checkpoint is "
                f"{self.folder.latest() or 'none'} — free space or correct the folder, then restart"
            ) from error

    def _sums(self, aside: Path) -> dict[str, str]:
        """Return the checksums of the files that this rank wrote; rank 0 adds the files that belong to no rank."""
        mine = [*aside.glob(f"__{self._group.rank}_*"), *(aside.glob(".metadata") if self._group.rank == 0 else ())]
        return {one.name: checksum(one) for one in mine if one.name not in (PROGRESS, SUMS)}


def _free(folder: Path) -> str:
    there = next((one for one in (folder, *folder.absolute().parents) if one.is_dir()), Path("/"))
    return f"{shutil.disk_usage(there).free / 1e6:.0f} MB are free on that disk"


def _reason(error: BaseException) -> str:
    """Return the first failure on any rank, as one line."""
    if isinstance(error, dcp.CheckpointException):
        rank, (failure, _) = min(error.failures.items())
        return f"rank {rank}: {type(failure).__name__}: {one_line(failure)}"
    return one_line(error)
