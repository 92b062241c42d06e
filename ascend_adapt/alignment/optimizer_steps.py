"""Records the steps of optimizers: each parameter's gradient, its weight before and after, and the state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ascend_adapt.alignment import shards
from ascend_adapt.alignment.module_names import ModuleNames
from ascend_adapt.alignment.recorded_step import RecordedStep
from ascend_adapt.alignment.shards import Shard
from ascend_adapt.alignment.updates import Update


@dataclass
class _Pending:
    """An optimizer step in progress; ``line`` is None for a step nested in another step of the same optimizer."""

    optimizer: object
    line: dict[str, Any] | None = None
    updates: list[tuple[Update, dict[str, Any], Shard | None]] = field(default_factory=list)


class OptimizerSteps:
    """The optimizer steps in progress."""

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._pending: list[_Pending] = []

    def begin(
        self,
        step: RecordedStep,
        optimizer: object,
        kind: str,
        groups: list[dict[str, Any]],
        updates: Callable[[], list[Update]],
    ) -> None:
        """Record gradients, and weights before the step. The arguments are those of updates.StepRecorder."""
        if any(one.optimizer is optimizer for one in self._pending):  # its step() calls the step() of its base class
            self._pending.append(_Pending(optimizer))
            return
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        parameters = self._parameters()
        pending = _Pending(optimizer)
        for update in updates():
            root, _, shard = parameters.get(update.name) or (-1, None, shards.of_megatron(update.weight))
            line: dict[str, Any] = {"root": root, "name": update.name, "group": update.group}
            if update.gradient is not None:
                line["gradient"] = step.entry(update.gradient, shard)
                line["before"] = step.entry(update.weight, shard, once=True)
            pending.updates.append((update, line, shard))
        lines = [line for _, line, _ in pending.updates]
        head = {"kind": "optimizer", "step": step.number, "optimizer": number, "class": kind}
        pending.line = {**head, "groups": groups, "parameters": lines}
        self._pending.append(pending)

    def end(self, step: RecordedStep | None, optimizer: object) -> bool:
        """Record weights and state after the step; return False if it was nested in a step of the same optimizer."""
        pending = self._pending.pop() if self._pending and self._pending[-1].optimizer is optimizer else None
        if pending is None:
            return True
        if pending.line is None:
            return False
        if step is not None:
            for update, line, shard in pending.updates:
                if update.gradient is not None:
                    line["after"] = step.entry(update.weight, shard)
                    line["state"] = {
                        key: step.entry(value, shard)
                        for key, value in update.state().items()
                        if isinstance(value, torch.Tensor) and value.numel() > 1
                    }
            step.lines.append(pending.line)
        return True

    def updates_of_torch(self, optimizer: torch.optim.Optimizer) -> list[Update]:
        """Return the parameters of a torch.optim.Optimizer, with their names in the model."""
        names = {id(tensor): full for full, (_, tensor, _) in self._parameters().items()}
        found = []
        for number, group in enumerate(optimizer.param_groups):
            for place, one in enumerate(group["params"]):
                name = names.get(id(one), f"group {number}, parameter {place}")
                found.append(Update(name, number, one, one.grad, partial(optimizer.state.get, one, {})))
        return found

    def _parameters(self) -> dict[str, tuple[int, torch.Tensor, Shard | None]]:
        """Return (root, tensor, shard) of the parameters of all roots, by name."""
        found: dict[str, tuple[int, torch.Tensor, Shard | None]] = {}
        for root in range(len(self._names.roots)):
            for owner, own, full, tensor, is_parameter in self._names.tensors(root):
                if is_parameter:
                    found.setdefault(full, (root, tensor, shards.of_parameter(owner, own, tensor)))
        return found
