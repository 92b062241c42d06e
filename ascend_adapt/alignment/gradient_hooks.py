"""Records gradients by hooks on tensors.

Torch's full backward hooks on modules would wrap inputs and outputs in views, and fail in programs that change them in
place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ascend_adapt.alignment import shards
from ascend_adapt.alignment.module_names import Name
from ascend_adapt.alignment.recorded_step import RecordedStep, RecordedTensor
from ascend_adapt.alignment.shards import Shard


def with_gradient(step: RecordedStep, tensor: torch.Tensor, shard: Shard | None) -> RecordedTensor:
    """Digest this version of a tensor on first use, record its gradient when it is computed, and return the record."""
    known = step.known(tensor, shard)
    if known is not None:
        return known
    recorded = step.record(tensor, shard)
    if tensor.requires_grad and torch.is_grad_enabled():
        recorded.has_gradient = True
        tensor.register_hook(_on_gradient(step, recorded, shard))
    return recorded


def _on_gradient(step: RecordedStep, recorded: RecordedTensor, shard: Shard | None) -> Callable[[torch.Tensor], None]:
    def record(gradient: torch.Tensor) -> None:
        if step.is_open and recorded.gradient is None and gradient is not None:
            recorded.gradient = step.row_of(gradient, recorded.gradient_shard or shard)

    return record


def watch_parameters(step: RecordedStep, module: nn.Module, name: Name) -> None:
    """Record the gradients that each backward pass adds to a module's own parameters."""
    for own, parameter in module._parameters.items():
        if parameter is not None and parameter.requires_grad and id(parameter) not in step.hooked:
            full, shard = f"{name.path}.{own}".lstrip("."), shards.of_parameter_gradient(module, own, parameter)
            step.hooked[id(parameter)] = parameter.register_hook(_on_parameter_gradient(step, name.root, full, shard))


def _on_parameter_gradient(
    step: RecordedStep, root: int, name: str, shard: Shard | None
) -> Callable[[torch.Tensor], None]:
    def record(gradient: torch.Tensor) -> None:
        if step.is_open:
            call = step.backwards[name]
            step.backwards[name] += 1
            step.add("gradient", root=root, name=name, call=call, **step.entry(gradient, shard))

    return record
