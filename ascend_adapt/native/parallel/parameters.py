"""Parameter layout: how each parameter is initialised, and how it is sharded over the mesh.

A parameter's name and its full, unsharded value do not depend on the mesh. No rank needs to hold the full value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascend_adapt.config.train_config import Init

WORDS = "embedding.words.weight"
"""Name of the token embedding; if it is tied, the last pipeline stage has a copy."""


class MasterWeight(nn.Parameter):
    """Master weight: the fp32 original of a 16-bit compute weight."""

    narrow_gradient: torch.Tensor | None = None
    """A gradient in the dtype of the compute weight, while nothing is added to it; ``grad`` is then None."""
    copied_at: int | None = None
    """Version of this tensor when it was last copied to the compute weight."""
    is_copied_by_optimizer: bool = True
    """Whether the optimizer may write the compute weight; not under ZeRO-3, where other weights share its memory."""


@dataclass(frozen=True)
class ParameterLayout:
    """Initialisation of one parameter, and its sharding over tensor-parallel ranks."""

    init: Init | float
    """A float is a constant that fills the parameter."""
    cut: int | None = None
    """The axis that is sharded over tensor-parallel ranks; None if the parameter is replicated."""
    partial: bool = False
    """Whether the gradient must be summed over tensor-parallel ranks (sequence parallelism)."""
    copy_of: str | None = None
    """The parameter of another stage that this one is tied to."""


class Declared(nn.Module):
    """A module whose parameters have a layout."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: dict[str, ParameterLayout] = {}
        self.masters: dict[str, nn.Parameter] = {}
        """Master weights by name, if the module computes with copies of them."""

    def declare(self, name: str, shape: tuple[int, ...] | None, layout: ParameterLayout) -> None:
        """Register a parameter with the shape of this rank's shard; None if the module does not have this parameter."""
        if shape is not None:
            self.layouts[name] = layout
        self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))

    def compute_with(self, name: str, copy: nn.Parameter, master: MasterWeight) -> None:
        """Compute with ``copy`` in place of a parameter, and train ``master``, this rank's rows of the parameter."""
        self.masters[name] = master
        setattr(self, name, copy)

    def trained(self, name: str) -> nn.Parameter:
        """Return the trained parameter: the master weight if it exists."""
        found: nn.Parameter = self.masters.get(name, getattr(self, name))
        return found


@dataclass(frozen=True)
class Placed:
    """A parameter of this rank's stages with its global name."""

    name: str
    parameter: nn.Parameter
    layout: ParameterLayout
    shape: tuple[int, ...]
    """Shape of this tensor-parallel shard, before data-parallel sharding."""
    copy: nn.Parameter | None = None
    """The compute weight, if it is a copy of all elements of a master weight on this rank."""

    @property
    def local(self) -> torch.Tensor:
        """The elements that this rank holds."""
        return local(self.parameter).detach()

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient of these elements; a master weight's may have the dtype of the compute weight."""
        if self.parameter.grad is None:
            return getattr(self.parameter, "narrow_gradient", None)
        return local(self.parameter.grad)

    def widen_gradient(self) -> None:
        """Cast a gradient to the dtype of its parameter, for code that accumulates into it."""
        narrow = getattr(self.parameter, "narrow_gradient", None)
        if narrow is not None:
            self.parameter.grad = narrow.to(self.parameter.dtype)
            self.clear_narrow_gradient()

    def clear_narrow_gradient(self) -> None:
        """Drop a gradient in the dtype of the compute weight."""
        if isinstance(self.parameter, MasterWeight):
            self.parameter.narrow_gradient = None

    def copy_is_current(self) -> None:
        """Record that ``copy`` has just been written from the parameter."""
        if isinstance(self.parameter, MasterWeight):
            self.parameter.copied_at = self.parameter._version

    @property
    def is_matrix(self) -> bool:
        """Whether the parameter has more than one axis, unlike biases and norm weights."""
        return len(self.shape) > 1

    def whole_shape(self, tensor_ranks: int) -> tuple[int, ...]:
        """Return the full, unsharded shape."""
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
                    trained, used = module.trained(name), getattr(module, name)
                    is_copy = used is not trained and tuple(trained.shape) == shape
                    is_copy = is_copy and getattr(trained, "is_copied_by_optimizer", True)
                    found.append(Placed(whole_name, trained, layout, shape, used if is_copy else None))
    return found


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself."""
    if not isinstance(tensor, DTensor):
        whole: torch.Tensor = tensor
        return whole
    with torch.no_grad():  # with gradients enabled, or through DTensor.detach(), this takes twenty times as long
        part: torch.Tensor = tensor.to_local()
        return part


def rows_of_shard(rows: int, shards: int, rank: int) -> slice:
    """Return a rank's rows of the first axis, split as torch.chunk and FSDP do: the last ranks may have fewer."""
    size = -(-rows // shards)
    return slice(min(rank * size, rows), min((rank + 1) * size, rows))
