"""What the trainer knows of each parameter beside its numbers: how it is filled, and how it lies on the mesh.

A parameter has the same name in every mesh, and the numbers of its whole, which no rank need hold, do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascend_adapt.native.config.train_config import Init

WORDS = "embedding.words.weight"
"""The table of ids; where it is tied, the last pipeline stage holds it too."""


@dataclass(frozen=True)
class ParameterLayout:
    """How one parameter is filled, and what tensor-parallel ranks hold of it."""

    init: Init | float
    """A number: the constant."""
    cut: int | None = None
    """The axis that is cut over tensor-parallel ranks; None: each holds all of it."""
    partial: bool = False
    """Whether each tensor-parallel rank has a part of its gradient, which is their sum (sequence parallel)."""
    copy_of: str | None = None
    """The parameter of another stage that it must stay equal to."""


class Declared(nn.Module):
    """A module that declares its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: dict[str, ParameterLayout] = {}
        self.masters: dict[str, nn.Parameter] = {}
        """What is trained, where the module computes with copies of it."""

    def declare(self, name: str, shape: tuple[int, ...] | None, layout: ParameterLayout) -> None:
        """Add a parameter of this rank's shape; None: the module has none of that name."""
        if shape is not None:
            self.layouts[name] = layout
        self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))

    def compute_with(self, name: str, copy: nn.Parameter, master: nn.Parameter) -> None:
        """Take a copy in the place of a parameter, and as what is trained its master, or this rank's rows of it."""
        self.masters[name] = master
        setattr(self, name, copy)

    def trained(self, name: str) -> nn.Parameter:
        """Return the parameter of that name, or its master."""
        found: nn.Parameter = self.masters.get(name, getattr(self, name))
        return found


@dataclass(frozen=True)
class Placed:
    """A parameter under its global name."""

    name: str
    parameter: nn.Parameter
    layout: ParameterLayout
    shape: tuple[int, ...]
    """That of all data-parallel ranks' rows together."""

    @property
    def local(self) -> torch.Tensor:
        """The numbers that this rank holds."""
        return local(self.parameter).detach()

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient of these numbers."""
        return None if self.parameter.grad is None else local(self.parameter.grad)

    @property
    def is_matrix(self) -> bool:
        """Whether it has more than one axis: no bias and no weight of a norm."""
        return len(self.shape) > 1

    def whole_shape(self, tensor_ranks: int) -> tuple[int, ...]:
        """Return the shape of the parameter over all ranks."""
        shape = list(self.shape)
        if self.layout.cut is not None:
            shape[self.layout.cut] *= tensor_ranks
        return tuple(shape)


def placed(models: Iterable[nn.Module]) -> list[Placed]:
    """Return the parameters of this rank's stages, in order."""
    found = []
    for model in models:
        for prefix, module in model.named_modules():
            if isinstance(module, Declared):
                for name, layout in module.layouts.items():
                    whole_name = layout.copy_of or (f"{prefix}.{name}" if prefix else name)
                    shape = tuple(getattr(module, name).shape)
                    found.append(Placed(whole_name, module.trained(name), layout, shape))
    return found


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of what FSDP has cut, or the tensor."""
    if not isinstance(tensor, DTensor):
        whole: torch.Tensor = tensor
        return whole
    with torch.no_grad():  # with gradients, or by its own detach(), it takes twenty times as long
        part: torch.Tensor = tensor.to_local()
        return part


def rows_of_shard(rows: int, shards: int, rank: int) -> slice:
    """Return which rows of the first axis FSDP leaves on a rank: torch.chunk's, so that the last may have fewer."""
    size = -(-rows // shards)
    return slice(min(rank * size, rows), min((rank + 1) * size, rows))
