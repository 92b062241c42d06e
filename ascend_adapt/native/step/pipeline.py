"""Pipeline schedules: forward and backward passes over the micro batches of a step, on one or several stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.step.data_parallel import DTYPES, after_passes, before_backward, before_passes

MicroBatch = Mapping[str, torch.Tensor]
"""tokens and labels, int64 [B, S], and other arguments of Decoder.forward if needed."""

Batch = MicroBatch | Sequence[MicroBatch]
"""The micro batches of a step, concatenated along the batch axis, or one by one if their shapes differ.

In a pipeline they all have the same shape.
"""


class PipelineSchedule(Protocol):
    """Runs the micro batches of a step."""

    def train(self, batch: Batch, micro_batches: int, scale: float) -> torch.Tensor:
        """Run forward and backward passes; parameters get the gradients of scale * mean loss.

        Returns fp32 [2]: the weighted sum of the losses of the micro batches, and the sum of the weights. Both are 0 on
        ranks without the last stage.
        """

    def evaluate(self, batch: Batch, micro_batches: int) -> torch.Tensor:
        """Run forward passes only, and return the same two sums as ``train``."""


def passes(config: TrainConfig, mesh: Mesh, decoders: Sequence[Decoder]) -> PipelineSchedule:
    """Return the schedule for this rank's decoders, which are in stage order."""
    if config.parallel.pipeline == 1:
        return Accumulation(config, decoders[0])
    return Pipeline(config, mesh, decoders)


class Accumulation:
    """Gradient accumulation on a single stage."""

    def __init__(self, config: TrainConfig, decoder: Decoder) -> None:
        self.config, self.parallel, self.decoder = config, config.parallel, decoder

    def train(self, batch: Batch, micro_batches: int, scale: float) -> torch.Tensor:
        """See PipelineSchedule."""
        before_passes(self.decoder)
        losses = []
        for number, part in enumerate(_parts(batch, micro_batches), 1):
            before_backward(self.decoder, self.parallel, is_last=number == micro_batches)
            loss = _loss(self.decoder, part)
            (loss * (scale / micro_batches)).sum().backward()
            losses.append(loss.detach())
        after_passes(self.decoder)
        return _sums(self.config, torch.cat(losses), batch, micro_batches)

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro_batches: int) -> torch.Tensor:
        """See PipelineSchedule."""
        before_passes(self.decoder)
        losses = [_loss(self.decoder, part) for part in _parts(batch, micro_batches)]
        return _sums(self.config, torch.cat(losses), batch, micro_batches)


class Pipeline:
    """1F1B schedule over several stages, interleaved if there are virtual stages, from torch.distributed.pipelining."""

    def __init__(self, config: TrainConfig, mesh: Mesh, decoders: Sequence[Decoder]) -> None:
        self.config, self.mesh = config, mesh
        self.stages = [_Stage(decoder) for decoder in decoders]
        self._scale = 1.0
        self._schedules: dict[tuple[int, bool, int], Any] = {}

    def train(self, batch: Batch, micro_batches: int, scale: float) -> torch.Tensor:
        """See PipelineSchedule."""
        self._scale = scale
        for stage in self.stages:
            stage.expect(micro_batches, self.config)
        sums = self._run(batch, micro_batches, trains=True)
        for stage in self.stages:
            after_passes(stage.decoder)
        return sums

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro_batches: int) -> torch.Tensor:
        """See PipelineSchedule."""
        return self._run(batch, micro_batches, trains=False)

    def _run(self, batch: Batch, micro_batches: int, *, trains: bool) -> torch.Tensor:
        for stage in self.stages:
            before_passes(stage.decoder)
        if not isinstance(batch, Mapping):
            batch = {name: torch.cat([part[name] for part in batch]) for name in batch[0]}
        key = (micro_batches, trains, batch["tokens"].shape[1])
        if key not in self._schedules:
            self._schedules[key] = self._schedule(*key[:2], length=key[2])
        others = {name: tensor for name, tensor in batch.items() if name != "tokens"}
        inputs = (batch["tokens"],) if self.mesh.pipeline_rank == 0 else ()
        more = {"target": batch["labels"]} if trains else {}
        losses = self._schedules[key].step(*inputs, **more, **others)
        if losses is None:
            return torch.zeros(2, device=self.mesh.device)
        return _sums(self.config, losses.detach().flatten(), batch, micro_batches)

    def _schedule(self, micro_batches: int, trains: bool, *, length: int) -> Any:
        """Return a schedule with its own stages, whose buffers differ between training and evaluation."""
        parallel, count = self.config.parallel, len(self.config.parallel.stages)
        stages = [
            _ScheduledStage(
                stage,
                number,
                count,
                self.mesh.device,
                input_args=self._example(number, length),
                output_args=self._example(number + 1, length),
                group=self.mesh.group("pipeline"),
                neighbours={} if _are_posted_in_batches() else self.mesh.neighbours,
            )
            for stage, number in zip(self.stages, stages_of(self.config, self.mesh), strict=True)
        ]
        loss: Callable[..., torch.Tensor] | None = self._scaled_mean if trains else None
        if parallel.virtual_stages > 1:
            kind = pipelining.ScheduleInterleaved1F1B
            return kind(stages, micro_batches, loss, **_unscaled(kind))
        # torch's 1F1B rejects fewer micro batches than stages; in this case 1F1B is equivalent to GPipe.
        kind = pipelining.Schedule1F1B if micro_batches >= count else pipelining.ScheduleGPipe
        return kind(stages[0], micro_batches, loss, **_unscaled(kind))

    def _scaled_mean(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * (self._scale / self.stages[0].expected)).sum()

    def _example(self, border: int, length: int) -> torch.Tensor:
        """Return a meta tensor with the shape and dtype of the input of stage ``border``."""
        config, count = self.config, len(self.config.parallel.stages)
        batch = config.batch.micro * config.rows_per_sample
        if border == 0:
            return torch.empty(batch, length, dtype=torch.int64, device="meta")
        if border == count:
            return torch.empty(1, dtype=torch.float32, device="meta")
        shape = (*self.stages[0].decoder.tp.sizes(batch, length), config.model.hidden_size)
        return torch.empty(shape, dtype=DTYPES[config.precision.dtype], device="meta", requires_grad=True)


def stages_of(config: TrainConfig, mesh: Mesh) -> range:
    """Return the numbers of the stages on this rank."""
    return range(mesh.pipeline_rank, len(config.parallel.stages), config.parallel.pipeline)


class _Stage(nn.Module):
    """Wraps a decoder for torch's schedules, which must not see an FSDP module.

    The schedules reduce the gradients of FSDP modules, differently in each release (2.13's interleaved schedule, by its
    source, does not reduce them). Here the backward pass of the step's last micro batch reduces them, as without a
    pipeline.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.expected = self.begun = 0

    def expect(self, micro_batches: int, config: TrainConfig) -> None:
        """Begin a step of ``micro_batches`` backward passes."""
        self.expected, self.begun, self.parallel = micro_batches, 0, config.parallel

    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        """Run the decoder; only the last stage gets the labels."""
        if not self.decoder.last:
            others = {name: tensor for name, tensor in others.items() if name not in ("labels", "loss_mask", "answers")}
        output: torch.Tensor = self.decoder(x, **others)
        if output.requires_grad:
            output.register_hook(self._backward_begins)
        return output

    def _backward_begins(self, _: torch.Tensor) -> None:
        self.begun += 1
        before_backward(self.decoder, self.parallel, is_last=self.begun == self.expected)


class _ScheduledStage(pipelining.PipelineStage):
    """A stage whose transfers are in the group of both ranks, if there is one.

    The transfers of a rank in a group run one by one, each as soon as both ranks have reached it. In the group of all
    pipeline ranks, where torch 2.11 has them (2.13 does not), an interleaved schedule would wait for the transfers of
    other ranks: with 8 micro batches and 2 stages on each of 4 ranks, a simulated step takes 18 % longer.
    """

    def __init__(self, *arguments: Any, neighbours: Mapping[int, Any], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._neighbours = neighbours

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._of_both_ranks(super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._of_both_ranks(super().get_bwd_recv_ops(bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._of_both_ranks(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._of_both_ranks(super().get_bwd_send_ops(bwd_chunk_id))

    def _of_both_ranks(self, transfers: list[dist.P2POp]) -> list[dist.P2POp]:
        return [
            dist.P2POp(one.op, one.tensor, one.peer, self._neighbours.get(one.peer, one.group)) for one in transfers
        ]


def _are_posted_in_batches() -> bool:
    """Return whether interleaved stages post transfers with several ranks at once, which must then be in one group.

    Older releases of torch do, such as 2.6.
    """
    step: Any = pipelining.ScheduleInterleaved1F1B._step_microbatches
    return step is pipelining.schedules.PipelineScheduleMulti._step_microbatches


def _unscaled(kind: Any) -> dict[str, Any]:
    """Disable the schedule's division by the number of micro batches; torch 2.6 has no such option and no division."""
    return {"scale_grads": False} if "scale_grads" in inspect.signature(kind.__init__).parameters else {}


def _sums(config: TrainConfig, losses: torch.Tensor, batch: Batch, micro_batches: int) -> torch.Tensor:
    """Return the two sums of PipelineSchedule from the losses of micro batches, [M]."""
    weights = torch.ones_like(losses)
    if config.logging.loss_mean == "tokens":
        weights = torch.stack([part["loss_mask"].sum() for part in _parts(batch, micro_batches)]).to(losses)
        losses = losses.where(weights > 0, 0.0)  # The mean of a micro batch without an unmasked token is NaN.
    return torch.stack([(losses * weights).sum(), weights.sum()])


def _loss(decoder: Decoder, part: MicroBatch) -> torch.Tensor:
    others = {name: tensor for name, tensor in part.items() if name != "tokens"}
    loss: torch.Tensor = decoder(part["tokens"], **others)
    return loss


def _parts(batch: Batch, micro_batches: int) -> Iterator[MicroBatch]:
    if not isinstance(batch, Mapping):
        yield from batch
        return
    chunks = {name: tensor.chunk(micro_batches) for name, tensor in batch.items()}
    for number in range(micro_batches):
        yield {name: parts[number] for name, parts in chunks.items()}
