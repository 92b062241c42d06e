"""Optimizers: Adam, AdamW and SGD on the elements that a rank holds after tensor-parallel and ZeRO sharding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from ascend_adapt import kernels
from ascend_adapt.alignment import updates as recorded
from ascend_adapt.alignment.updates import Update
from ascend_adapt.config.train_config import OptimizerConfig as Settings
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.parameters import Placed
from ascend_adapt.native.step import gradients


def decays(one: Placed) -> bool:
    """Return whether weight decay applies to a parameter: only to matrices, not to biases and norm weights."""
    return one.is_matrix


class Optimizer:
    """Optimizer with fp32 states, which are sharded like their parameters."""

    def __init__(self, parameters: Sequence[Placed], settings: Settings) -> None:
        self._all = parameters
        # A rank may hold no row of a small sharded parameter.
        self.parameters = [one for one in parameters if one.local.numel()]
        self.settings = settings
        names = ("momentum",) if settings.kind == "sgd" else ("exp_avg", "exp_avg_sq")
        self.states = [{name: torch.zeros_like(one.local) for name in names} for one in self.parameters]
        homes = [devices.of_counters(one.local.device) for one in self.parameters]
        self.steps = [torch.zeros((), dtype=torch.float32, device=home) for home in homes]
        self._decaying = [index for index, one in enumerate(self.parameters) if decays(one)]
        self._others = [index for index, one in enumerate(self.parameters) if not decays(one)]

    @torch.no_grad()
    def step(
        self,
        lr: float | torch.Tensor,
        weight_decay: float,
        factor: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update every parameter that has a gradient, after multiplying the gradient by ``factor``, fp32 [].

        If ``found_inf``, fp32 [], is 1, weights, states and step counters are unchanged.
        """
        recorder = recorded.current()
        if recorder is not None or self.settings.kind == "sgd" or not self.settings.decoupled:
            # Only AdamW's kernel applies the factor itself and reads 16-bit gradients.
            gradients.scale(self.parameters, 1.0 if factor is None else factor)
            factor = None
        with self._recorded(lr, weight_decay):
            self._step_group(self._decaying, lr, weight_decay, factor, found_inf)
            self._step_group(self._others, lr, 0.0, factor, found_inf)

    def _recorded(self, lr: float | torch.Tensor, weight_decay: float) -> AbstractContextManager[None]:
        """Record the step if ``ascend-run --record`` requests it."""
        recorder = recorded.current()
        if recorder is None:
            return nullcontext()
        groups = [
            {"lr": lr, "weight_decay": decay, "betas": list(self.settings.betas), "eps": self.settings.eps}
            for decay in (weight_decay, 0.0)
        ]

        def updates() -> list[Update]:
            return [
                Update(one.name, int(not decays(one)), one.local, one.gradient, partial(dict, state))
                for one, state in zip(self.parameters, self.states, strict=True)
            ]

        return recorder.optimizer_step(self, self.settings.kind, groups, updates)

    def clear_gradients(self) -> None:
        """Drop all gradients. Each is a view of its bucket's buffer, and even an empty view keeps the buffer alive."""
        for one in self._all:
            one.parameter.grad = None
            one.clear_narrow_gradient()

    def _step_group(
        self,
        group: Sequence[int],
        lr: float | torch.Tensor,
        weight_decay: float,
        factor: torch.Tensor | None,
        found_inf: torch.Tensor | None,
    ) -> None:
        settings = self.settings
        given = {index: gradient for index in group if (gradient := self.parameters[index].gradient) is not None}
        chosen, found = list(given), list(given.values())
        if not chosen:
            return
        weights = [self.parameters[index].local for index in chosen]
        states = [self.states[index] for index in chosen]
        if not settings.decoupled or settings.kind == "sgd":
            for weight, gradient in zip(weights, found, strict=True):
                gradient.add_(weight, alpha=weight_decay)
            weight_decay = 0.0
        if settings.kind == "sgd":
            if found_inf is not None and found_inf:
                return
            for weight, gradient, state in zip(weights, found, states, strict=True):
                weight.add_(state["momentum"].mul_(settings.momentum).add_(gradient), alpha=-float(lr))
            return
        for places in gradients.by_dtype(found):
            self._adamw(
                [chosen[place] for place in places],
                [found[place] for place in places],
                lr,
                weight_decay,
                factor,
                found_inf,
            )

    def _adamw(
        self,
        chosen: Sequence[int],
        found: Sequence[torch.Tensor],
        lr: float | torch.Tensor,
        weight_decay: float,
        factor: torch.Tensor | None,
        found_inf: torch.Tensor | None,
    ) -> None:
        """Update parameters whose gradients have the same dtype."""
        settings, states = self.settings, [self.states[index] for index in chosen]
        copies = [copy for index in chosen if (copy := self.parameters[index].copy) is not None]
        has_copies = len(copies) == len(chosen)
        kernels.adamw(
            [self.parameters[index].local for index in chosen],
            found,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [self.steps[index] for index in chosen],
            lr=lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=weight_decay,
            factor=factor,
            copies=[copy.detach() for copy in copies] if has_copies else (),
            found_inf=found_inf,
        )
        if has_copies:
            for index in chosen:
                self.parameters[index].copy_is_current()
