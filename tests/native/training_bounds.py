"""How far apart losses and gradient norms of the same training may be, in fp32: the roundings of a pass, magnified.

Training magnifies a difference by its own growth, which is a property of the run and of no machine: change every weight
by a relative ``d``, far above fp32's rounding, and see by how many ``d`` the losses change. ``perturbed`` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from error_bounds import relative

from ascend_adapt.config.train_config import Model
from ascend_adapt.native.step.trainer import Trainer


def roundings(model: Model, length: int) -> int:
    """Return how many terms are summed one after another on the way to a loss, and twice as many on the way back."""
    attention = model.head_dim + 2 * length
    layer = 4 * model.hidden_size + model.ffn_hidden_size + attention
    return 3 * (model.num_layers * layer + model.hidden_size + model.padded_vocab_size)


def apart(model: Model, length: int, growth: float = 1.0) -> float:
    """Return the relative difference that rounding may make to a loss or a gradient norm."""
    return relative((roundings(model, length), torch.float32, growth))


@contextmanager
def perturbed(by: float) -> Iterator[None]:
    """Begin every training in here from weights that are off by a relative ``by``, each by another random share."""
    made = Trainer.__init__

    def off(self: Trainer, *args: object, **named: object) -> None:
        made(self, *args, **named)
        dice = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for one in self.parameters:
                one.local.mul_(1 + by * torch.randn(one.local.shape, generator=dice))

    with patch.object(Trainer, "__init__", off):
        yield
