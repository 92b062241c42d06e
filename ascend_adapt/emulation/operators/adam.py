"""npu_apply_adam, npu_apply_adam_w and npu_bert_apply_adam: one in-place step on ``out``, which is (var, m, v)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import adam as limits

_NAMES = (
    *("beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon", "grad"),
    *("use_locking", "use_nesterov", "max_grad_norm", "amsgrad", "maximize"),
    *("global_grad_norm", "step_size", "adam_mode"),
)


@kernel("npu_apply_adam", "npu_apply_adam_w", "npu_bert_apply_adam", takes=_NAMES)
def without_out(**given: Any) -> None:
    """Raise an error, because the operators only exist with ``out``."""
    limits.OUT_ONLY.require(False, "out is missing")


@kernel("npu_apply_adam.out")
def apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    use_nesterov: bool | None,
    out: Sequence[torch.Tensor],
    use_locking: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write one Adam step to var, m and v, and return them.

    Source of the arithmetic: op-plugin@517f2e7 test/test_base_ops/test_apply_adam.py; the powers are beta**step.
    """
    var, m, v = out
    _require_one_shape(grad, var, m, v)
    powers = 0 <= beta1_power < 1 and 0 <= beta2_power < 1
    limits.ADAM_POWERS.require(powers, f"beta1_power is {beta1_power}, beta2_power is {beta2_power}")
    g = wide(grad).to(wide(var).dtype)
    first = wide(m) + (1 - beta1) * (g - wide(m))
    second = wide(v) + (1 - beta2) * (g.square() - wide(v))
    rate = lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    direction = first * beta1 + (1 - beta1) * g if use_nesterov else first
    var.copy_(wide(var) - rate * direction / (epsilon + second.sqrt()))
    return var, m.copy_(first), v.copy_(second)


@kernel("npu_apply_adam_w.out")
def apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write one AdamW step to var, m and v, and return them.

    Source of the arithmetic: op-plugin@517f2e7 test/test_base_ops/test_apply_adam_w.py; powers are beta**(step - 1).
    """
    var, m, v = out
    _require_one_shape(grad, var, m, v)
    limits.DIMENSION_COUNT.require(var.dim() in limits.DIMENSIONS, f"var is {shape(var)}")
    limits.AMSGRAD.require(not amsgrad or max_grad_norm is not None, "amsgrad=True, max_grad_norm=None")
    powers = 0 < beta1_power <= 1 and 0 < beta2_power <= 1
    limits.ADAM_W_POWERS.require(powers, f"beta1_power is {beta1_power}, beta2_power is {beta2_power}")
    g = wide(grad).to(wide(var).dtype)
    g = -g if maximize else g
    first = wide(m) * beta1 + (1 - beta1) * g
    second = wide(v) * beta2 + (1 - beta2) * g.square()
    largest = second
    if amsgrad and max_grad_norm is not None:
        largest = torch.maximum(wide(max_grad_norm).to(second.dtype), second)
    below = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
    var.copy_(wide(var) * (1 - lr * weight_decay) - lr * first / (1 - beta1_power * beta1) / below)
    return var, m.copy_(first), v.copy_(second)


@kernel("npu_bert_apply_adam.out")
def bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None,
    adam_mode: int,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write one step of Adam without bias correction to var, m and v, and return them.

    ``adam_mode`` is 0 for BERT's Adam, otherwise mBART's, which has a step size of its own and does not clip.
    Source of the arithmetic: CANN's ops-nn@7df93a44 optim/apply_adam_v2/README.md.
    """
    var, m, v = out
    _require_one_shape(grad, var, m, v)
    found = f"var is {dtype(var)}, m is {dtype(m)}, v is {dtype(v)}, grad is {dtype(grad)}"
    one_dtype = {tensor.dtype for tensor in (var, m, v, grad)} in ({torch.float16}, {torch.float32})
    limits.BERT_DTYPES.require(one_dtype, found)
    g = wide(grad)
    if adam_mode == 0:
        limits.BERT_CLIPPING.require(max_grad_norm <= 0 or max_grad_norm == 1, f"max_grad_norm is {max_grad_norm}")
        g = g / global_grad_norm if max_grad_norm > 0 and global_grad_norm > 1 else g
        rate = lr
    else:
        limits.BERT_STEP_SIZE.require(step_size is not None, f"adam_mode is {adam_mode}, step_size is None")
        rate = float(step_size or 0)
    first = wide(m) * beta1 + (1 - beta1) * g
    second = wide(v) * beta2 + (1 - beta2) * g.square()
    var.copy_(wide(var) * (1 - lr * weight_decay) - rate * first / (second.sqrt() + epsilon))
    return var, m.copy_(first), v.copy_(second)


def _require_one_shape(*tensors: torch.Tensor) -> None:
    names = ("grad", "var", "m", "v")
    found = ", ".join(f"{name} is {shape(tensor)}" for name, tensor in zip(names, tensors, strict=True))
    limits.SHAPES.require(len({tensor.shape for tensor in tensors}) == 1, found)
