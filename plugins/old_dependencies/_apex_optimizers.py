"""Optimizers of apex on torch's multi-tensor operators; this module is imported on the first use of apex.optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._amp_c import multi_tensor_adam

CHUNK_SIZE = 2048 * 32


class FusedAdam(torch.optim.Optimizer):
    """AdamW, or Adam with ``adam_w_mode=False``; has fp32 moments and one step counter per group, as in apex.

    Source: NVIDIA/apex@6424da3b apex/optimizers/fused_adam.py.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        for name, value in (("amsgrad", amsgrad), ("capturable", capturable), ("master_weights", master_weights)):
            if value:
                raise RuntimeError(f"FusedAdam: {name}=True is not supported on this device — remove it")
        group = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, group)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set gradients to None, or to zero with ``set_grad_none=False``."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an Adam step for the parameters that have a gradient; return the result of ``closure``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            for param in params:
                if param.grad.is_sparse:
                    raise RuntimeError("FusedAdam: a gradient is sparse, expected a dense one — use SparseAdam")
                if not self.state[param]:
                    for name in ("exp_avg", "exp_avg_sq"):
                        self.state[param][name] = torch.zeros_like(param, dtype=torch.float32)
            if params:
                states = [self.state[param] for param in params]
                moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
                beta1, beta2 = group["betas"]
                multi_tensor_adam(
                    CHUNK_SIZE,
                    None,
                    [[param.grad for param in params], params, *moments],
                    group["lr"],
                    beta1,
                    beta2,
                    group["eps"],
                    group["step"],
                    self.adam_w_mode,
                    int(group["bias_correction"]),
                    group["weight_decay"],
                )
        return loss


class FusedSGD(torch.optim.SGD):
    """SGD with momentum, with the optimizer states of torch and apex.

    Source: NVIDIA/apex@6424da3b apex/optimizers/fused_sgd.py.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        if wd_after_momentum:
            raise RuntimeError("FusedSGD: wd_after_momentum=True is not supported on this device — remove it")
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, foreach=True)
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set gradients to zero, or to None with ``set_grad_none=True``."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)
