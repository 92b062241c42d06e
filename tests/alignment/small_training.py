"""A small decoder and its training loop, written as people write them, with a place for each planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ascend_adapt.alignment.recorder import Recorder
from ascend_adapt.alignment.selection import Selection

VOCABULARY, HIDDEN, HEADS, LAYERS, LENGTH, IGNORED = 61, 32, 4, 2, 16, -100
STEPS, MICRO_BATCHES = 3, 2


def half_rotated(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


class Rotary(nn.Module):
    """cos and sin of the positions, kept as buffers."""

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(LENGTH).float(), base ** -(torch.arange(0, width, 2) / width))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.cos + half_rotated(x) * self.sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.rotary = Rotary(HIDDEN // HEADS)
        self.scale = 1.0 / math.sqrt(HIDDEN // HEADS)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def masked_out(self) -> torch.Tensor:
        return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        scores = self.rotary(query) @ self.rotary(key).transpose(2, 3) * self.scale
        scores = scores.masked_fill(self.masked_out(), -math.inf)
        return self.o_proj((self.softmax(scores) @ value).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.mlp, self.dropout = Attention(), MLP(), nn.Dropout(0.1)

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return self.residual(x) + self.dropout(self.mlp(self.norm2(x)))


class Decoder(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the embedding."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(LENGTH + 1, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.words.weight
        self.recompute, self.preserve_random_state = recompute, True
        for parameter in self.parameters():  # biases and norms are not at their neutral values
            nn.init.normal_(parameter, std=0.1) if parameter.dim() > 1 else parameter.data.add_(
                torch.randn_like(parameter), alpha=0.1
            )

    def position_ids(self) -> torch.Tensor:
        return torch.arange(LENGTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(self.position_ids())
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.preserve_random_state)
            else:
                x = block(x)
        return self.head(self.norm(x))


def batches(step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (ids, labels) of each micro-batch; the last label of each sequence is ignored."""
    generator = torch.Generator().manual_seed(1000 + step)
    found = []
    for _ in range(MICRO_BATCHES):
        ids = torch.randint(VOCABULARY, (2, LENGTH), generator=generator)
        labels = ids.roll(-1, 1)
        labels[:, -1] = IGNORED
        found.append((ids, labels))
    return found


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def groups(model: nn.Module, weight_decay: float = 0.1) -> list[dict]:
    """Return parameter groups: matrices decay, biases and norm weights do not."""
    parameters = list(model.parameters())
    return [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": weight_decay},
        {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model), lr=1e-3, betas=(0.9, 0.95))


def reduce_nothing(model: nn.Module, step: int) -> None:
    """One rank has nothing to reduce."""


@dataclass
class Run:
    """A training run whose parts a fault may replace."""

    seed: int = 0
    recompute: bool = False
    plant: Callable[[Decoder], object] = lambda model: None
    batches: Callable[[int], list[tuple[torch.Tensor, torch.Tensor]]] = batches
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss_of
    accumulation: float = MICRO_BATCHES
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw
    learning_rate: Callable[[int], float] = lambda step: 1e-3 / step
    reduce: Callable[[nn.Module, int], object] = reduce_nothing
    clip: float | None = 1.0
    after_micro_batch: Callable[[Decoder, int], object] = lambda model, index: None
    after_step: Callable[[Decoder, int], object] = lambda model, step: None
    clear: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.zero_grad()
    steps: int = STEPS
    dtype: torch.dtype = torch.float32
    model: type[Decoder] = field(default=Decoder)

    def record(self, folder: Path) -> Path:
        """Train and record every step; return the folder."""
        torch.manual_seed(self.seed)
        model = self.model(self.recompute).to(self.dtype)
        self.plant(model)
        optimizer = self.optimizer(model)
        torch.manual_seed(7)
        with Recorder(folder, Selection()):
            for step in range(1, self.steps + 1):
                for index, (ids, labels) in enumerate(self.batches(step)):
                    (self.loss(model(ids).float(), labels) / self.accumulation).backward()
                    self.after_micro_batch(model, index)
                self.reduce(model, step)
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                for group in optimizer.param_groups:
                    group["lr"] = self.learning_rate(step)
                optimizer.step()
                self.clear(optimizer)
                self.after_step(model, step)
        return folder
