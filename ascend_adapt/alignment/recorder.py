"""Records the steps of a training process by hooks: global ones on modules and optimizers, others on their tensors.

Nothing of the program is replaced, and outside the recorded steps only the optimizer's hook is left. A step is
everything from the first call of a module with gradients up to the next such call after an optimizer has stepped.

Gradients are read by hooks on tensors. Torch's full backward hooks on modules would put views around inputs and
outputs, and fail in programs that change them in place.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ascend_adapt.alignment import kept_inputs, random_state, run_facts, shards
from ascend_adapt.alignment.digest import WIDTH, digest, is_digestible
from ascend_adapt.alignment.module_names import ModuleNames, Name
from ascend_adapt.alignment.recording import Writer
from ascend_adapt.alignment.selection import EVERYTHING, Selection
from ascend_adapt.alignment.shards import Shard
from ascend_adapt.alignment.updates import Update, set_current
from ascend_adapt.errors import AlignmentError, one_line

_SCALARS = (bool, int, float, str, type(None))
_COPIES_OF_INPUTS = ("BackwardHookFunctionBackward", "PostBackwardFunctionModuleBackward")
"""Torch's full backward hooks and ZeRO-3 give a module a copy of its input, whose gradient is this module's share."""
_DEEPEST = 4
"""Nesting of tuples and dicts of tensors that is followed in inputs and outputs."""


@dataclass
class _Tensor:
    """One version of a tensor and, once it has arrived, its gradient: their rows in the step's array."""

    row: int
    dtype: str
    shape: list[int]
    gradient: int | None = None
    has_gradient: bool = False
    gradient_shard: Shard | None = None


@dataclass
class _Pending:
    """A step of an optimizer that has begun; ``line`` is None inside another step of the same optimizer."""

    optimizer: object
    line: dict[str, Any] | None = None
    updates: list[tuple[Update, dict[str, Any], Shard | None]] = field(default_factory=list)


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


@dataclass
class _Step:
    """What is gathered during one step; rows are numbered in the order of time."""

    number: int
    digests: dict[int, torch.Tensor] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    rows: Iterator[int] = field(default_factory=itertools.count)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    calls: Counter[tuple[Name, bool]] = field(default_factory=Counter)
    backwards: Counter[str] = field(default_factory=Counter)
    known: dict[int, tuple[Any, int, _Tensor]] = field(default_factory=dict)
    hooked: list[Any] = field(default_factory=list)
    watched: set[int] = field(default_factory=set)

    def entry(self, tensor: torch.Tensor, shard: Shard | None, once: bool = False) -> dict[str, Any]:
        """Return the entry of a tensor without its gradient.

        ``once``: it is digested once a version. Optimizers and DeepSpeed change tensors without a new version.
        """
        version = -1 if tensor.is_inference() else tensor._version
        seen = self.known.get(id(tensor)) if once else None
        if seen is None or seen[0]() is not tensor or seen[1] != version:
            known = _Tensor(self.add(tensor, shard), str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            seen = self.known[id(tensor)] = (weakref.ref(tensor), version, known)
        return _Entry("", replace(seen[2], has_gradient=False), shard).as_line()

    def add(self, tensor: torch.Tensor, shard: Shard | None = None) -> int:
        """Digest a tensor and return its row."""
        local: Any = getattr(tensor, "to_local", None)
        with torch.no_grad():
            here = local() if local is not None else tensor
            if hasattr(here, "wait"):  # an asynchronous collective's result
                here = here.wait()
        row = next(self.rows)
        if is_digestible(here):
            place = (shard.axis, shard.offset(here.shape)) if shard is not None and shard.axis is not None else (0, 0)
            self.digests[row] = digest(here, *place)
        else:
            self.digests[row] = torch.full((WIDTH,), float("nan"))
        return row


class Recorder:
    """Records the selected steps of this process until ``close``.

    Args:
        folder: the recording; this rank's files are in the folder rank-N there.
        steps: numbers of optimizer steps, from 1.
        ranks: the ranks that are recorded.
        keep_inputs: names of modules whose inputs and state are saved for a replay.
        report: prints why this process cannot be recorded; the training continues.
    """

    def __init__(
        self,
        folder: Path,
        steps: Selection,
        ranks: Selection = EVERYTHING,
        keep_inputs: tuple[str, ...] = (),
        report: Callable[[str], None] = print,
    ) -> None:
        self._folder, self._steps, self._ranks, self._keep, self._report = folder, steps, ranks, keep_inputs, report
        self._pid = os.getpid()
        self._writer: Writer | None = None
        self._names = ModuleNames()
        self._described: set[Name] = set()
        self._number = 1
        self._stepped: set[int] = set()
        self._optimizers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._step: _Step | None = None
        self._thread = threading.local()
        self._on_modules: list[Any] = []
        self._on_optimizers = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        self._pending: list[_Pending] = []
        set_current(self)
        self._watch_modules()

    def close(self) -> None:
        """Write the last step, and remove all hooks."""
        if os.getpid() == self._pid:
            self._end_step(is_complete=bool(self._stepped))
        for handle in (*self._on_modules, *self._on_optimizers):
            handle.remove()
        self._on_modules, self._on_optimizers = [], []
        set_current(None)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Modules

    def _watch_modules(self) -> None:
        """Install the hooks on modules if this step or the one that begins next is recorded, else remove them."""
        is_near = self._number in self._steps or (bool(self._stepped) and self._number + 1 in self._steps)
        if is_near and not self._on_modules:
            self._thread = threading.local()
            self._on_modules = [
                hooks.register_module_forward_pre_hook(self._before_call),
                hooks.register_module_forward_hook(self._after_call, with_kwargs=True, always_call=True),
            ]
        elif not is_near and self._step is None:
            for handle in self._on_modules:
                handle.remove()
            self._on_modules = []

    @property
    def _stack(self) -> list[_Call]:
        stack: list[_Call] = self._thread.__dict__.setdefault("stack", [])
        return stack

    def _before_call(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or os.getpid() != self._pid:
            return
        stack = self._stack
        if not stack and self._stepped and torch.is_grad_enabled() and not _in_backward():
            self._next_step()
        if not self._on_modules:  # the step that begins is not recorded, and the hooks were removed
            return
        if not stack and self._step is None and self._number in self._steps and torch.is_grad_enabled():
            self._begin_step(module)
        step = self._step
        parent = stack[-1] if stack else None
        name = self._names.of(module, parent.module if parent else None)
        # What runs between an optimizer's step and the next one, such as an evaluation, belongs to no step.
        is_recorded = step is not None and not (self._stepped and not stack) and (parent is None or parent.is_recorded)
        number = next(step.numbers) if step is not None and is_recorded else 0
        recomputed, index = _in_backward(), 0
        if step is not None and is_recorded and not name.is_wrapper:
            index = step.calls[name, recomputed]
            step.calls[name, recomputed] += 1
        stack.append(_Call(number, module, name, parent, index, recomputed, is_recorded))

    def _after_call(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """``rest`` is (kwargs, output), or (None,) where an exception has left the forward pass."""
        if torch.compiler.is_compiling() or os.getpid() != self._pid:
            return
        stack = self._stack
        if not any(call.module is module for call in stack):  # the hooks were installed during the call
            return
        while stack[-1].module is not module:
            stack.pop()
        call, step = stack.pop(), self._step
        if step is None or not call.is_recorded or len(rest) == 1:
            return
        kwargs, output = rest
        if call.name.is_wrapper and call.inner_recorded:
            if call.parent is not None:
                call.parent.inner_recorded = True
            return
        if call.parent is not None:
            call.parent.inner_recorded = True
        if call.name.is_wrapper:  # the wrapped module is compiled: its own hooks are not called
            call.index = step.calls[call.name, call.recomputed]
            step.calls[call.name, call.recomputed] += 1
        self._describe(step, call)
        inputs = self._entries(step, {"args": args, "kwargs": kwargs}, shards.of_input(module), call)
        outputs = self._entries(step, {"out": output}, shards.of_output(module), call, is_output=True)
        self._watch_gradients(step, module)
        parent = call.parent
        while parent is not None and parent.name.is_wrapper:
            parent = parent.parent
        line = {
            "kind": "call",
            "step": step.number,
            "id": call.number,
            "parent": parent.number if parent is not None else None,
            "root": call.name.root,
            "name": call.name.path,
            "call": call.index,
            **({"recomputed": True} if call.recomputed else {}),
            "inputs": inputs,
            "outputs": outputs,
        }
        step.lines.append(line)
        if call.name.path in self._keep and not call.recomputed and self._writer is not None:
            kept_inputs.save(self._writer.folder, step.number, call.name.path, call.index, module, args, kwargs, output)

    def _describe(self, step: _Step, call: _Call) -> None:
        """Record once what a module is."""
        if call.name in self._described:
            return
        self._described.add(call.name)
        line = {"kind": "module", "root": call.name.root, "name": call.name.path, "class": type(call.module).__name__}
        step.lines.append({**line, "settings": run_facts.settings_of(call.module)})

    def _entries(
        self, step: _Step, value: dict[str, Any], shard: Shard | None, call: _Call, is_output: bool = False
    ) -> list[dict[str, Any]]:
        """Return an entry for each tensor and scalar inside inputs or an output."""
        found: list[dict[str, Any]] = []
        is_first = True
        for path, leaf in _leaves(value):
            if not isinstance(leaf, torch.Tensor):
                found.append({"path": path, "value": leaf if not isinstance(leaf, float) else repr(leaf)})
                continue
            known = self._known(step, leaf, shard if is_first else None)
            if is_first and not is_output:
                known.gradient_shard = known.gradient_shard or shards.of_input_gradient(call.module)
            line = _Entry(path, known, shard if is_first else None).as_line()
            if not is_output and type(leaf.grad_fn).__name__ in _COPIES_OF_INPUTS:
                line["share"] = True
            found.append(line)
            is_first = False
        return found

    def _known(self, step: _Step, tensor: torch.Tensor, shard: Shard | None) -> _Tensor:
        """Return this version of a tensor, digested at its first appearance in the step."""
        version = -1 if tensor.is_inference() else tensor._version
        seen = step.known.get(id(tensor))
        if seen is not None and seen[0]() is tensor and seen[1] == version:
            return seen[2]
        known = _Tensor(step.add(tensor, shard), str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        step.known[id(tensor)] = (weakref.ref(tensor), version, known)
        if tensor.requires_grad and torch.is_grad_enabled():
            known.has_gradient = True
            tensor.register_hook(self._on_gradient(step, known, shard))
        return known

    def _on_gradient(self, step: _Step, known: _Tensor, shard: Shard | None) -> Callable[[torch.Tensor], None]:
        def record(gradient: torch.Tensor) -> None:
            if step is self._step and known.gradient is None and gradient is not None:
                known.gradient = step.add(gradient, known.gradient_shard or shard)

        return record

    def _watch_gradients(self, step: _Step, module: nn.Module) -> None:
        """Record what each backward pass adds to the gradients of a module's own parameters."""
        for own, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or id(parameter) in step.watched:
                continue
            step.watched.add(id(parameter))
            full, shard = self._full_name(module, own), shards.of_parameter(module, own, parameter)
            handle = parameter.register_hook(self._on_parameter_gradient(step, full, shard))
            step.hooked.append(handle)

    def _on_parameter_gradient(
        self, step: _Step, name: tuple[int, str], shard: Shard | None
    ) -> Callable[[torch.Tensor], None]:
        def record(gradient: torch.Tensor) -> None:
            if step is self._step:
                index = step.backwards[name[1]]
                step.backwards[name[1]] += 1
                line = {"kind": "gradient", "step": step.number, "root": name[0], "name": name[1], "call": index}
                step.lines.append({**line, **step.entry(gradient, shard)})

        return record

    def _full_name(self, module: nn.Module, own: str) -> tuple[int, str]:
        stack = self._stack
        name = self._names.of(module, stack[-1].module if stack else None)
        return name.root, f"{name.path}.{own}".lstrip(".")

    # Steps

    def _begin_step(self, module: nn.Module) -> None:
        self._step = step = _Step(self._number)
        self._stepped.clear()
        self._names.of(module, None)
        device = next((each.device for each in module.parameters()), torch.device("cpu"))
        if self._writer is None:
            rank = run_facts.rank(os.environ)
            if rank not in self._ranks:
                self._step = None
                self.close()
                return
            facts = run_facts.facts(rank, device, list(module.modules()))
            try:
                self._writer = Writer(self._folder / f"rank-{rank}", facts)
            except (OSError, AlignmentError) as error:
                self._give_up(error)
                return
        state = random_state.digests(device)
        step.lines.append({"kind": "step", "step": step.number, "random_state": state})
        for root in range(len(self._names.roots)):
            for owner, own, full, tensor, is_parameter in self._names.tensors(root):
                self._add_weight(step, root, owner, own, full, tensor, is_parameter)

    def _add_weight(
        self, step: _Step, root: int, owner: nn.Module, own: str, full: str, tensor: torch.Tensor, is_parameter: bool
    ) -> None:
        shard = shards.of_parameter(owner, own, tensor) if is_parameter else None
        line = {"kind": "weight", "step": step.number, "root": root, "name": full, "parameter": is_parameter}
        step.lines.append({**line, **step.entry(tensor, shard, once=True)})

    def _next_step(self) -> None:
        self._end_step(is_complete=True)
        self._number += 1
        self._stepped.clear()
        self._watch_modules()

    def _end_step(self, is_complete: bool) -> None:
        step, self._step = self._step, None
        if step is None or self._writer is None:
            return
        for handle in step.hooked:
            handle.remove()
        for line in step.lines:
            for entry in (*line.get("inputs", ()), *line.get("outputs", ())):
                _with_gradient(entry)
        step.lines.append({"kind": "step", "step": step.number, "complete": is_complete})
        try:
            self._writer.write(step.number, step.lines, _gathered(step.digests))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Report why nothing more is recorded; the training itself is worth more than its recording."""
        self._step = None
        self._report(f"--record {self._folder}: {one_line(error)}, recording stops in this process")
        self.close()

    # Optimizers

    @contextmanager
    def optimizer_step(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> Iterator[None]:
        """Record the step of an optimizer that is not a torch.optim.Optimizer (updates.StepRecorder)."""
        self._begin_update(optimizer, kind, groups, updates)
        yield
        self._end_update(optimizer)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        def updates() -> list[Update]:
            found = []
            for number, group in enumerate(optimizer.param_groups):
                for place, one in enumerate(group["params"]):
                    name = names.get(id(one), f"group {number}, parameter {place}")
                    found.append(Update(name, number, one, one.grad, partial(optimizer.state.get, one, {})))
            return found

        names = {id(tensor): full for full, (_, tensor, _) in self._parameters().items()} if self._step else {}
        groups = [run_facts.plain(each) for each in optimizer.param_groups]
        self._begin_update(optimizer, type(optimizer).__name__, groups, updates)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._end_update(optimizer)

    def _begin_update(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> None:
        step = self._step
        if step is None or os.getpid() != self._pid:
            return
        if any(one.optimizer is optimizer for one in self._pending):  # its step calls that of its base class
            self._pending.append(_Pending(optimizer))
            return
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        parameters = self._parameters()
        pending = _Pending(optimizer)
        for update in updates():
            root, _, shard = parameters.get(update.name, (-1, None, None))
            line: dict[str, Any] = {"root": root, "name": update.name, "group": update.group}
            if update.gradient is not None:
                line["gradient"] = step.entry(update.gradient, shard)
                line["before"] = step.entry(update.weight, shard, once=True)
            pending.updates.append((update, line, shard))
        lines = [line for _, line, _ in pending.updates]
        head = {"kind": "optimizer", "step": step.number, "optimizer": number, "class": kind}
        pending.line = {**head, "groups": groups, "parameters": lines}
        self._pending.append(pending)

    def _end_update(self, optimizer: object) -> None:
        if os.getpid() != self._pid:
            return
        step = self._step
        pending = self._pending.pop() if self._pending and self._pending[-1].optimizer is optimizer else None
        if pending is not None and pending.line is None:
            return
        if step is not None and pending is not None and pending.line is not None:
            for update, line, shard in pending.updates:
                if update.gradient is not None:
                    line["after"] = step.entry(update.weight, shard)
                    line["state"] = {
                        key: step.entry(value, shard)
                        for key, value in update.state().items()
                        if isinstance(value, torch.Tensor) and value.numel() > 1
                    }
            step.lines.append(pending.line)
        self._stepped_with(id(optimizer))

    def _stepped_with(self, optimizer: int) -> None:
        if self._step is None and optimizer in self._stepped:  # a step that was not recorded ended with its first one
            self._number += 1
            self._stepped.clear()
        self._stepped.add(optimizer)
        self._watch_modules()

    def _parameters(self) -> dict[str, tuple[int, torch.Tensor, Shard | None]]:
        """Return (root, tensor, shard) of the parameters of all roots, by name."""
        found: dict[str, tuple[int, torch.Tensor, Shard | None]] = {}
        for root in range(len(self._names.roots)):
            for owner, own, full, tensor, is_parameter in self._names.tensors(root):
                if is_parameter:
                    found.setdefault(full, (root, tensor, shards.of_parameter(owner, own, tensor)))
        return found


@dataclass(frozen=True)
class _Entry:
    """A tensor in a line; the gradient's row is filled in at the end of the step."""

    path: str
    tensor: _Tensor
    shard: Shard | None

    def as_line(self) -> dict[str, Any]:
        known = self.tensor
        line: dict[str, Any] = {"path": self.path} if self.path else {}
        line |= {"row": known.row, "dtype": known.dtype, "shape": known.shape}
        if known.has_gradient:
            line["gradient"] = known
        if self.shard is not None:
            line["shard"] = [self.shard.axis, self.shard.rank, self.shard.size]
        return line


def _with_gradient(entry: dict[str, Any]) -> None:
    """Replace the tensor whose gradient was awaited by that gradient's row."""
    known = entry.get("gradient")
    if isinstance(known, _Tensor):
        entry["gradient"] = known.gradient
        if known.gradient_shard is not None:
            entry["gradient_shard"] = [known.gradient_shard.axis, known.gradient_shard.rank, known.gradient_shard.size]


def _gathered(digests: dict[int, torch.Tensor]) -> Any:
    """Return all digests as one float32 array [rows, WIDTH], with one transfer for each device."""
    whole = torch.full((len(digests), WIDTH), float("nan"))
    by_device: dict[torch.device, list[int]] = {}
    for row, value in digests.items():
        by_device.setdefault(value.device, []).append(row)
    for rows in by_device.values():
        whole[rows] = torch.stack([digests[row] for row in rows]).cpu()
    return whole.numpy()


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


def _in_backward() -> bool:
    """Return whether this thread is inside a backward pass, where activation checkpointing calls modules again."""
    inside: int = torch._C._current_graph_task_id()
    return inside != -1
