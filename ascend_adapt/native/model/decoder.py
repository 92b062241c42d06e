"""GPT decoder: the full model, or the layers of one pipeline stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ascend_adapt import kernels
from ascend_adapt.config.train_config import Init, Model, Parallel
from ascend_adapt.native.model.dropout import dropout
from ascend_adapt.native.model.kv_cache import KeyValueCache
from ascend_adapt.native.model.layers import AttentionContext, Branch, Norm, TransformerBlock, rotary_tables
from ascend_adapt.native.parallel.parameters import WORDS, Declared, ParameterLayout
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel, VocabularyParallelEmbedding
from ascend_adapt.native.parallel.zero import ComputeWeights

IGNORE_INDEX = -100


class Objective(Protocol):
    """Objective: a loss for the last stage that replaces the language modelling loss."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, tp: TensorParallel, rows: Rows, *, training: bool
    ) -> torch.Tensor:
        """Return the loss [1], fp32, from hidden states [B, S, H] and this rank's rows of the head [V / ranks, H]."""


@dataclass(frozen=True)
class Rows:
    """Inputs of a batch's loss: labels, loss mask and others."""

    labels: torch.Tensor
    """int64 [B, S]."""
    loss_mask: torch.Tensor | None
    """[B, S], 0 where a label is ignored."""
    prefix: torch.Tensor | None = None
    """int64 [B], see Decoder.forward."""
    answers: torch.Tensor | None = None
    """int64 [B], the index of the right answer to each row's example; -1 for a padding row."""


class Positions(Declared):
    """Learned position embedding, [max_positions, H]."""

    def __init__(self, model: Model, tp: TensorParallel) -> None:
        super().__init__()
        shape = (model.max_positions, model.hidden_size)
        self.declare("weight", shape, ParameterLayout(model.embedding_init, partial=tp.sequence))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up position ids, int64 [B, S]; returns [B, S, H]."""
        return functional.embedding(ids, self.weight)


class Embedding(nn.Module):
    """Token embedding, plus learned positions and block positions."""

    def __init__(self, model: Model, tp: TensorParallel) -> None:
        super().__init__()
        self.model, self.tp = model, tp
        self.words = VocabularyParallelEmbedding(tp, model.padded_vocab_size, model.hidden_size, model.embedding_init)
        if model.position_tables:
            self.positions = Positions(model, tp)
        if model.positions == "block":
            self.block_positions = Positions(model, tp)

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids: torch.Tensor | None,
        block_position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embed token ids, int64 [B, S]; returns [B, S, H], sharded along S under sequence parallelism."""
        x = self.words(tokens)
        if self.model.position_tables:
            if position_ids is None:
                position_ids = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            x = x + self.positions(self.tp.piece(position_ids))
        if self.model.positions == "block":
            if block_position_ids is None:
                block_position_ids = torch.zeros_like(tokens)
            x = x + self.block_positions(self.tp.piece(block_position_ids))
        return dropout(x, self.model.hidden_dropout, self.tp, training=self.training)


class Head(Declared):
    """Output layer [V, H], rows sharded over tensor-parallel ranks; the decoder fuses it with the loss."""

    def __init__(self, model: Model, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        shape = (model.padded_vocab_size // tp.size, model.hidden_size)
        tied = model.tied_embeddings
        init: Init = model.embedding_init if tied else model.head_init
        self.declare("weight", shape, ParameterLayout(init, cut=0, copy_of=WORDS if tied else None))


class Decoder(nn.Module):
    """The layers ``numbers`` of a model, with the embedding on the first stage and the head on the last."""

    def __init__(
        self,
        model: Model,
        tp: TensorParallel,
        numbers: Sequence[int],
        *,
        first: bool = True,
        last: bool = True,
        recompute: str = "none",
        recompute_layers: int = 1,
    ) -> None:
        super().__init__()
        self.model, self.tp, self.first, self.last = model, tp, first, last
        self.recompute_run = recompute_layers if recompute == "full" else 0
        self.copies: ComputeWeights | None = None
        self.objective: Objective | None = None
        self.may_defer = not model.rms_eps_on_root
        """Whether a fused block leaves its last residual add to the next norm; not if FSDP may free the bias before."""
        self.fused = False
        if first:
            self.embedding = Embedding(model, tp)
        selective = recompute == "selective"
        self.layers = nn.ModuleDict(
            {str(number): TransformerBlock(model, tp, recompute_attention=selective) for number in numbers}
        )
        if last:
            self.final_norm = Norm(model, tp)
            if not (model.tied_embeddings and first):
                self.head = Head(model, tp)

    def fuse(self, fused: bool) -> None:
        """Use kernels that fuse a linear layer with the operators around it, or plain operators."""
        self.fused = fused
        for block in self.layers.values():
            assert isinstance(block, TransformerBlock)
            block.fuse(fused)

    def forward(
        self,
        x: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        block_position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
        masked_out: torch.Tensor | None = None,
        prefix: torch.Tensor | None = None,
        answers: torch.Tensor | None = None,
        cache: KeyValueCache | None = None,
        logits_to_keep: int | None = None,
    ) -> torch.Tensor:
        """Return hidden states [B, S, H]; on the last stage return the loss [1], fp32, or the logits.

        Args:
            x: token ids, int64 [B, S], on the first stage; hidden states of the previous stage on others. position_ids:
            int64 [B, S], for learned positions; None counts from 0. block_position_ids: int64 [B, S], for positions
            inside a blank; None is 0 everywhere. labels: int64 [B, S]; without labels the last stage returns logits [B,
            S, V / tensor ranks]. loss_mask: [B, S], 0 where a label is ignored. The loss is the mean over the other
            labels. masked_out: bool [B, S, S], True = masked out; None: causal. prefix: int64 [B], the length of the
            prefix that every token attends to; attention is causal after it. Exclusive with masked_out. answers: int64
            [B], for an ``objective`` that needs them. cache: KV cache of the tokens before x, for generation. Positions
            and mask follow from it; x is appended. logits_to_keep: number of last tokens whose logits are returned;
            None returns all logits.
        """
        length = x.shape[1] if self.first else self.tp.whole_length(x.shape[1])
        if cache is not None:
            position_ids, masked_out = cache.position_ids(x), cache.masked_out(length)
            block_position_ids = cache.block_position_ids(x)
        if self.first:
            self._arrive(self.embedding)
            x = self.embedding(x, position_ids, block_position_ids)
        rotary = None
        if self.model.positions == "rotary":
            # Without a cache, positions count from 0 in every row, as upstream's do.
            rotary = rotary_tables(self.model, length, x, None if cache is None else position_ids)
        mask = None if masked_out is None else masked_out[:, None]
        x, branch = self._through(x, AttentionContext(mask, rotary, cache, prefix))
        if cache is not None:
            cache.advance(length)
        if not self.last:
            return x
        self._arrive(self, *_tensors(x, branch))
        x = self.final_norm(x) if branch is None else self.final_norm(x, branch)[1]
        if logits_to_keep is not None:
            x = x[:, -logits_to_keep:]
        rows = None if labels is None else Rows(labels, loss_mask, prefix, answers)
        return self._loss_or_logits(x, rows)

    def _through(self, x: torch.Tensor, context: AttentionContext) -> tuple[torch.Tensor, Branch | None]:
        """Return the residual stream, and the branch that the final norm adds to it."""
        blocks, defers = list(self.layers.values()), self.fused and self.may_defer
        if not self.recompute_run or not torch.is_grad_enabled():
            return _chain(blocks, x, context, defers, self._arrive, last_too=self.last)
        for start in range(0, len(blocks), self.recompute_run):
            run = blocks[start : start + self.recompute_run]
            x, _ = checkpoint(
                _chain, run, x, context, defers, self._arrive,
                use_reentrant=False, preserve_rng_state=self.model.has_dropout,
            )  # fmt: skip
        return x, None

    def _arrive(self, module: nn.Module, *inputs: torch.Tensor) -> None:
        """Wait for the compute weights of a module, which other ranks may still be sending."""
        if self.copies is not None:
            self.copies.arrive(module, *inputs)

    def _loss_or_logits(self, x: torch.Tensor, rows: Rows | None) -> torch.Tensor:
        weight = self.head.weight if hasattr(self, "head") else self.embedding.words.weight
        if rows is None:
            return functional.linear(self.tp.enter(x), weight)
        x = self.tp.gathered(x)
        if self.objective is not None:
            return self.objective(x, weight, self.tp, rows, training=self.training)
        labels = counted_labels(rows)
        loss = kernels.linear_cross_entropy(x, weight, labels, ignore_index=IGNORE_INDEX, group=self.tp.group)
        # Not a view: an in-place change of a view would lose FSDP's backward hook.
        return torch.stack([loss])


def counted_labels(rows: Rows) -> torch.Tensor:
    """Return the labels, with IGNORE_INDEX where the loss mask is 0."""
    return rows.labels if rows.loss_mask is None else rows.labels.masked_fill(rows.loss_mask == 0, IGNORE_INDEX)


def _chain(
    blocks: Sequence[nn.Module],
    x: torch.Tensor,
    context: AttentionContext,
    defers: bool,
    arrive: Callable[..., None],
    *,
    last_too: bool = False,
) -> tuple[torch.Tensor, Branch | None]:
    """Return the residual stream after the blocks, and with ``last_too`` the branch deferred by the last block."""
    if not defers:
        for block in blocks:
            arrive(block, x)
            x = block(x, context)
        return x, None
    branch: Branch | None = None
    for number, block in enumerate(blocks, 1):
        arrive(block, *_tensors(x, branch))
        if number < len(blocks) or last_too:
            x, branch = block(x, context, branch, defer=True)
        else:
            x, branch = block(x, context, branch), None
    return x, branch


def _tensors(x: torch.Tensor, branch: Branch | None) -> list[torch.Tensor]:
    """Return the activations that one block passes to the next."""
    return [x] if branch is None else [x, branch.value]


def stage_layers(parallel: Parallel, stage: int) -> range:
    """Return the layer numbers of one stage."""
    before = sum(parallel.stages[:stage])
    return range(before, before + parallel.stages[stage])
