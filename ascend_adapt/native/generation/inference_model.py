"""Inference model: a decoder on one device or over tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ascend_adapt.config.train_config import Model
from ascend_adapt.native import device as devices
from ascend_adapt.native.generation.decode_step import DecodeStep
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.model.kv_cache import KeyValueCache
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel.mesh import Mesh


class InferenceModel:
    """A decoder in evaluation mode; every tensor-parallel rank calls it with the same tokens."""

    def __init__(self, model: Model, decoder: Decoder, mesh: Mesh) -> None:
        self.model, self.decoder, self.mesh = model, decoder, mesh
        self._decode_step: DecodeStep | None = None

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was trained for."""
        return self.model.max_positions

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
        """Return this rank's logits [B, S, rows / ranks] of int64 ``tokens`` [B, S]; ``gathered`` joins all ranks'."""
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

    def next_logits(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Return this rank's logits [B, rows / ranks] after ``tokens`` [B, S], which continue ``cache``."""
        return self.local_logits(tokens, cache=cache, logits_to_keep=1)[:, 0]

    def decode_step(self, rows: int, capacity: int) -> DecodeStep | None:
        """Return a decode step for ``rows`` rows of ``capacity`` tokens, cached for the next batch of these shapes.

        Return None if the device has no graphs or several ranks compute the step.
        """
        if not devices.has_graphs(self.device) or self.mesh.parallel.tensor > 1:
            return None
        if self._decode_step is None or not self._decode_step.serves(rows, capacity):
            self._decode_step = None  # frees the memory of the previous step first
            self._decode_step = DecodeStep(self.next_logits, rows, capacity, self.max_positions, self.device)
        return self._decode_step

    def gathered(self, logits: torch.Tensor) -> torch.Tensor:
        """Gather the fp32 logits [..., padded vocabulary] of all ranks from this rank's logits."""
        group = self.mesh.group("tensor")
        if group is not None:
            mine = logits.movedim(-1, 0).contiguous()
            whole = mine.new_empty((mine.shape[0] * self.mesh.parallel.tensor, *mine.shape[1:]))
            collectives.all_gather(whole, mine, group)
            logits = whole.movedim(0, -1)
        return logits[..., : self.model.padded_vocab_size].float()

    def agreed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Broadcast rank 0's ``tokens`` to every tensor-parallel rank, and return them."""
        group = self.mesh.group("tensor")
        if group is not None:
            dist.broadcast(tokens, src=0, group=group)
        return tokens
