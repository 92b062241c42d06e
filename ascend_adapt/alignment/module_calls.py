"""Records the calls of modules: their inputs, outputs and settings, as a tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ascend_adapt.alignment import kept_inputs, run_facts, shards
from ascend_adapt.alignment.gradient_hooks import watch_parameters, with_gradient
from ascend_adapt.alignment.module_names import ModuleNames, Name
from ascend_adapt.alignment.recorded_step import RecordedStep
from ascend_adapt.alignment.shards import Shard

_SCALARS = (bool, int, float, str, type(None))
_COPIES_OF_INPUTS = ("BackwardHookFunctionBackward", "PostBackwardFunctionModuleBackward")
"""Torch's full backward hooks and ZeRO-3 give a module a copy of its input, whose gradient is this module's share."""
_DEEPEST = 4
"""Maximum nesting depth of tuples and dicts of tensors in inputs and outputs."""


@dataclass
class _Call:
    number: int
    module: nn.Module
    name: Name
    parent: _Call | None
    index: int
    recomputed: bool
    is_recorded: bool
    inner_recorded: bool = False


class ModuleCalls:
    """The calls in progress in each thread.

    Args:
        names: names the modules.
        keep: names of modules whose inputs and state are kept for a replay.
    """

    def __init__(self, names: ModuleNames, keep: tuple[str, ...]) -> None:
        self._names, self._keep = names, keep
        self._described: set[Name] = set()
        self.clear()

    def clear(self) -> None:
        """Forget the calls in progress; no hook will see their end."""
        self._thread = threading.local()

    @property
    def stack(self) -> list[_Call]:
        """The calls in progress in this thread, the outermost first."""
        stack: list[_Call] = self._thread.__dict__.setdefault("stack", [])
        return stack

    def enter(self, module: nn.Module, step: RecordedStep | None) -> None:
        """Begin a call; ``step`` is None outside the recorded steps."""
        parent = self.stack[-1] if self.stack else None
        name = self._names.of(module, parent.module if parent else None)
        if parent is not None and not parent.is_recorded:
            step = None
        number = next(step.call_numbers) if step is not None else 0
        call = _Call(number, module, name, parent, 0, in_backward(), step is not None)
        if step is not None and not name.is_wrapper:
            _count(step, call)
        self.stack.append(call)

    def leave(self, module: nn.Module, step: RecordedStep | None, args: Any, kwargs: Any, output: Any) -> None:
        """End a call, and record it in the current step."""
        call = self._pop(module)
        if call is None or step is None or not call.is_recorded:
            return
        is_seen_inside = call.inner_recorded
        if call.parent is not None:
            call.parent.inner_recorded = True
        if call.name.is_wrapper:
            if is_seen_inside:
                return
            _count(step, call)  # the wrapped module is compiled, so its hooks are not called
        self._describe(step, call)
        inputs = _entries(step, {"args": args, "kwargs": kwargs}, shards.of_input(module), call)
        outputs = _entries(step, {"out": output}, shards.of_output(module), call, is_output=True)
        watch_parameters(step, module, call.name)
        parent = call.parent
        while parent is not None and parent.name.is_wrapper:
            parent = parent.parent
        step.add(
            "call",
            id=call.number,
            parent=parent.number if parent is not None else None,
            root=call.name.root,
            name=call.name.path,
            call=call.index,
            **({"recomputed": True} if call.recomputed else {}),
            inputs=inputs,
            outputs=outputs,
        )
        if call.name.path in self._keep and not call.recomputed:
            kept_inputs.save(step.folder, step.number, call.name.path, call.index, module, args, kwargs, output)

    def abort(self, module: nn.Module) -> None:
        """End a call whose forward pass raised an exception."""
        self._pop(module)

    def _pop(self, module: nn.Module) -> _Call | None:
        """End a call and the calls inside it, and return it. None if the hooks were installed during the call."""
        stack = self.stack
        if not any(call.module is module for call in stack):
            return None
        while stack[-1].module is not module:
            stack.pop()
        return stack.pop()

    def _describe(self, step: RecordedStep, call: _Call) -> None:
        """Record the class and settings of a module, once."""
        if call.name not in self._described:
            self._described.add(call.name)
            line = {"kind": "module", "root": call.name.root, "name": call.name.path}
            settings = run_facts.settings_of(call.module)
            step.lines.append({**line, "class": type(call.module).__name__, "settings": settings})


def in_backward() -> bool:
    """Return whether this thread is inside a backward pass, where activation checkpointing calls modules again."""
    inside: int = torch._C._current_graph_task_id()
    return inside != -1


def _count(step: RecordedStep, call: _Call) -> None:
    """Number the calls of a module in a step."""
    call.index = step.calls[call.name, call.recomputed]
    step.calls[call.name, call.recomputed] += 1


def _entries(
    step: RecordedStep, value: dict[str, Any], shard: Shard | None, call: _Call, is_output: bool = False
) -> list[dict[str, Any]]:
    """Return an entry for each tensor and scalar in inputs or an output; ``shard`` describes the first tensor."""
    found: list[dict[str, Any]] = []
    is_first = True
    for path, leaf in _leaves(value):
        if not isinstance(leaf, torch.Tensor):
            found.append({"path": path, "value": leaf if not isinstance(leaf, float) else repr(leaf)})
            continue
        recorded = with_gradient(step, leaf, shard if is_first else shards.of_megatron(leaf))
        if is_first and not is_output:
            recorded.gradient_shard = recorded.gradient_shard or shards.of_input_gradient(call.module)
        entry = {"path": path, **recorded.entry()}
        if recorded.has_gradient:
            step.await_gradient(entry, recorded)
        if not is_output and type(leaf.grad_fn).__name__ in _COPIES_OF_INPUTS:
            entry["share"] = True
        found.append(entry)
        is_first = False
    return found


def _leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) for tensors and scalars inside tuples, lists, dicts and dataclasses."""
    if isinstance(value, (torch.Tensor, *_SCALARS)):
        yield path, value
    elif depth < _DEEPEST and isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}".lstrip("."), depth + 1)
    elif depth < _DEEPEST and isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}.{index}", depth + 1)
    elif depth < _DEEPEST and hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            yield from _leaves(getattr(value, key), f"{path}.{key}", depth + 1)
