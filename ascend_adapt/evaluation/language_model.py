"""The native decoder with the weights of a checkpoint, for inference on one device or over tensor-parallel ranks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ascend_adapt.checkpoint.detection import open_checkpoint
from ascend_adapt.checkpoint.source import Given, Source
from ascend_adapt.checkpoint.vocabulary_rows import is_vocabulary
from ascend_adapt.errors import CheckpointError
from ascend_adapt.evaluation.decode_step import DecodeStep
from ascend_adapt.native import device as devices
from ascend_adapt.native.config.train_config import Model, Parallel
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.model.initialisation import part
from ascend_adapt.native.model.kv_cache import KeyValueCache
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import placed
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@contextmanager
def ranks_of_this_job(kind: str | None = None) -> Iterator[Mesh]:
    """Yield the mesh of this process: every rank that a launcher started is a tensor-parallel rank.

    ``kind`` of device is that of a process without a launcher, which chooses it for its ranks.
    """
    if kind and "RANK" not in os.environ:
        os.environ["ASCEND_ADAPT_DEVICE"] = kind
    device = devices.of_this_rank()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield meshes.single(device)
        return
    dist.init_process_group(devices.backend(device))
    try:
        yield meshes.build(Parallel(tensor=world), device)
    finally:
        dist.destroy_process_group()


class LanguageModel:
    """A checkpoint's decoder in evaluation mode; every tensor-parallel rank calls it with the same tokens."""

    def __init__(self, source: Source, mesh: Mesh, dtype: torch.dtype | None = None) -> None:
        """Load the weights, one parameter in host memory at a time; ``dtype`` None keeps the checkpoint's.

        Raises:
            CheckpointError: it cannot be read, or its heads cannot be divided over the ranks.
        """
        self.source, self.model, self.mesh = source, source.model, mesh
        ranks = mesh.parallel.tensor
        _check_divisible(source, ranks)
        rows = -(-self.model.padded_vocab_size // ranks) * ranks
        with torch.device("meta"):
            self.decoder = Decoder(
                dataclasses.replace(self.model, padded_vocab_size=rows),
                TensorParallel.of(mesh),
                range(self.model.num_layers),
            )
        weights = {}
        for one in placed([self.decoder]):
            whole = source.read(one.name)
            if is_vocabulary(one.name):
                whole = nn.functional.pad(whole, (0, 0, 0, rows - whole.shape[0]))
            weights[one.name] = part(whole, one, mesh).to(mesh.device, dtype or source.dtype, copy=True)
        self.decoder.load_state_dict(weights, assign=True)
        self.decoder.eval().requires_grad_(False)
        self._decode_step: DecodeStep | None = None

    @classmethod
    def load(cls, path: Path, mesh: Mesh, dtype: str | None = None, config: Sequence[Path] = ()) -> LanguageModel:
        """Return the model of a checkpoint of any dialect; ``config``: GPT-NeoX's YAML, if the checkpoint has none."""
        return cls(open_checkpoint(path, Given(config=config)), mesh, DTYPES[dtype] if dtype else None)

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was trained for."""
        return self.model.max_positions

    @property
    def vocabulary(self) -> str:
        """Its size, and what its padding is counted for."""
        padding = self.model.padded_vocab_size - self.model.vocab_size
        note = f", {padding} of them padding: part of the softmax, as in training, and never generated"
        return f"{self.model.padded_vocab_size} rows{note if padding else ''}"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.mesh.device

    def local_logits(
        self,
        tokens: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        block_position_ids: torch.Tensor | None = None,
        masked_out: torch.Tensor | None = None,
        cache: KeyValueCache | None = None,
        logits_to_keep: int | None = None,
    ) -> torch.Tensor:
        """Return this rank's logits [B, S, rows / ranks] of int64 ``tokens`` [B, S]; ``gathered`` completes them."""
        with torch.no_grad():
            logits: torch.Tensor = self.decoder(
                tokens,
                position_ids=position_ids,
                block_position_ids=block_position_ids,
                masked_out=masked_out,
                cache=cache,
                logits_to_keep=logits_to_keep,
            )
        return logits

    def decode_step(self, rows: int, capacity: int) -> DecodeStep | None:
        """Return a step of generation for so many rows and tokens, kept for the next batch of these shapes.

        None: the device has no graphs, or several ranks compute the step.
        """
        if not devices.has_graphs(self.device) or self.mesh.parallel.tensor > 1:
            return None
        if self._decode_step is None or not self._decode_step.serves(rows, capacity):
            self._decode_step = None  # frees its memory first
            self._decode_step = DecodeStep(self, rows, capacity)
        return self._decode_step

    def gathered(self, logits: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits [..., padded vocabulary] of all ranks from this rank's."""
        group = self.mesh.group("tensor")
        if group is not None:
            mine = logits.movedim(-1, 0).contiguous()
            whole = mine.new_empty((mine.shape[0] * self.mesh.parallel.tensor, *mine.shape[1:]))
            collectives.all_gather(whole, mine, group)
            logits = whole.movedim(0, -1)
        return logits[..., : self.model.padded_vocab_size].float()

    def agreed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return rank 0's ``tokens`` on every rank."""
        group = self.mesh.group("tensor")
        if group is not None:
            dist.broadcast(tokens, src=0, group=group)
        return tokens


def _check_divisible(source: Source, ranks: int) -> None:
    model: Model = source.model
    sizes = {name: getattr(model, name) for name in ("num_heads", "num_query_groups", "ffn_hidden_size")}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % ranks]
    if wrong:
        usable = max(n for n in range(1, ranks) if all(size % n == 0 for size in sizes.values()))
        raise CheckpointError(
            f"{source.path}: {' and '.join(wrong)} cannot be divided over {ranks} tensor-parallel ranks, expected a "
            f"divisor — pass --tp {usable}"
        )
