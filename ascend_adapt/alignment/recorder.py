"""Records the steps of a training process by hooks: global hooks on modules and optimizers, and hooks on tensors.

No object of the program is replaced, and outside the recorded steps only the optimizer's hook is installed. A step
begins with a call of a module with gradients enabled, and ends at the next such call after an optimizer has stepped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ascend_adapt.alignment import random_state, run_facts, shards
from ascend_adapt.alignment.module_calls import ModuleCalls, in_backward
from ascend_adapt.alignment.module_names import ModuleNames
from ascend_adapt.alignment.optimizer_steps import OptimizerSteps
from ascend_adapt.alignment.recorded_step import RecordedStep
from ascend_adapt.alignment.recording import Writer
from ascend_adapt.alignment.selection import EVERYTHING, Selection
from ascend_adapt.alignment.updates import Update, set_current
from ascend_adapt.errors import AlignmentError, one_line


class Recorder:
    """Records the selected steps of this process until ``close``.

    Args:
        folder: the recording; this rank writes into its subfolder rank-N.
        steps: numbers of optimizer steps, from 1.
        ranks: the ranks that are recorded.
        keep_inputs: names of modules whose inputs and state are saved for a replay.
        report: prints why this process cannot be recorded, in which case the training continues.
    """

    def __init__(
        self,
        folder: Path,
        steps: Selection,
        ranks: Selection = EVERYTHING,
        keep_inputs: tuple[str, ...] = (),
        report: Callable[[str], None] = print,
    ) -> None:
        self._folder, self._steps, self._ranks, self._report = folder, steps, ranks, report
        self._pid = os.getpid()
        self._writer: Writer | None = None
        self._names = ModuleNames()
        self._calls = ModuleCalls(self._names, keep_inputs)
        self._optimizers = OptimizerSteps(self._names)
        self._number = 1
        self._stepped: set[int] = set()
        """The optimizers that have stepped since the step began."""
        self._step: RecordedStep | None = None
        self._on_modules: list[Any] = []
        self._on_optimizers = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
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
        """Install the hooks on modules if this step or the next one is recorded, else remove them."""
        is_near = self._number in self._steps or (bool(self._stepped) and self._number + 1 in self._steps)
        if is_near and not self._on_modules:
            self._calls.clear()
            self._on_modules = [
                hooks.register_module_forward_pre_hook(self._before_call),
                hooks.register_module_forward_hook(self._after_call, with_kwargs=True, always_call=True),
            ]
        elif not is_near and self._step is None:
            for handle in self._on_modules:
                handle.remove()
            self._on_modules = []

    def _before_call(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or os.getpid() != self._pid:
            return
        is_outermost = not self._calls.stack
        if is_outermost and self._stepped and torch.is_grad_enabled() and not in_backward():
            self._next_step()
        if not self._on_modules:  # the new step is not recorded, so the hooks have been removed
            return
        if is_outermost and self._step is None and self._number in self._steps and torch.is_grad_enabled():
            self._begin_step(module)
        # What runs between an optimizer's step and the next one, such as an evaluation, belongs to no step.
        is_between = is_outermost and self._stepped
        self._calls.enter(module, None if is_between else self._step)

    def _after_call(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """``rest`` is (kwargs, output), or (None,) if the forward pass raised an exception."""
        if torch.compiler.is_compiling() or os.getpid() != self._pid:
            return
        if len(rest) == 1:
            self._calls.abort(module)
        else:
            self._calls.leave(module, self._step, args, *rest)

    # Steps

    def _begin_step(self, module: nn.Module) -> None:
        self._stepped.clear()
        self._names.of(module, None)
        device = next((each.device for each in module.parameters()), torch.device("cpu"))
        if self._writer is None:
            rank = run_facts.rank(os.environ)
            if rank not in self._ranks:
                self.close()
                return
            facts = run_facts.facts(rank, device, list(module.modules()))
            try:
                self._writer = Writer(self._folder / f"rank-{rank}", facts)
            except (OSError, AlignmentError) as error:
                self._give_up(error)
                return
        self._step = step = RecordedStep(self._number, self._writer.folder)
        step.add("step", random_state=random_state.digests(device))
        for root in range(len(self._names.roots)):
            for owner, own, full, tensor, is_parameter in self._names.tensors(root):
                shard = shards.of_parameter(owner, own, tensor) if is_parameter else None
                entry = step.entry(tensor, shard, once=True)
                step.add("weight", root=root, name=full, parameter=is_parameter, **entry)

    def _next_step(self) -> None:
        self._end_step(is_complete=True)
        self._number += 1
        self._stepped.clear()
        self._watch_modules()

    def _end_step(self, is_complete: bool) -> None:
        step, self._step = self._step, None
        if step is None or self._writer is None:
            return
        try:
            step.write(self._writer, is_complete)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Report why recording stops; the training itself continues."""
        self._report(f"--record {self._folder}: {one_line(error)}, recording stops in this process")
        self.close()

    # Optimizers

    @contextmanager
    def optimizer_step(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> Iterator[None]:
        """Record the step of an optimizer that is not a torch.optim.Optimizer; implements updates.StepRecorder."""
        self._begin_update(optimizer, kind, groups, updates)
        yield
        self._end_update(optimizer)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = [run_facts.plain(each) for each in optimizer.param_groups]
        updates = partial(self._optimizers.updates_of_torch, optimizer)
        self._begin_update(optimizer, type(optimizer).__name__, groups, updates)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._end_update(optimizer)

    def _begin_update(
        self, optimizer: object, kind: str, groups: list[dict[str, Any]], updates: Callable[[], list[Update]]
    ) -> None:
        if self._step is not None and os.getpid() == self._pid:
            self._optimizers.begin(self._step, optimizer, kind, groups, updates)

    def _end_update(self, optimizer: object) -> None:
        if os.getpid() != self._pid or not self._optimizers.end(self._step, optimizer):
            return
        if (
            self._step is None and id(optimizer) in self._stepped
        ):  # without recording, a step ends when an optimizer steps for the second time
            self._number += 1
            self._stepped.clear()
        self._stepped.add(id(optimizer))
        self._watch_modules()
