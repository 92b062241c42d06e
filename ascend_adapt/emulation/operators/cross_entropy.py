"""npu_cross_entropy_loss and its gradient.

Source of the definition: op-plugin@517f2e7 test/test_custom_ops/test_npu_cross_entropy_loss.py.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.full_size import values
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import cross_entropy as limits


@kernel("npu_cross_entropy_loss", needs_a2=True)
def cross_entropy_loss(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale_for_zloss: float,
    return_zloss: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss ([N] for reduction 'none', else [1]), the log probabilities [N, C], and two empty tensors."""
    _require(self, target, weight, reduction, ignore_index, label_smoothing)
    limits.ZLOSS.require(
        lse_square_scale_for_zloss == 0 and not return_zloss,
        f"lse_square_scale_for_zloss={lse_square_scale_for_zloss}, return_zloss={return_zloss}",
    )
    if self.requires_grad:
        given = f"weight is {'given' if weight is not None else 'None'}, ignore_index={ignore_index}"
        given = f"reduction={reduction!r}, {given}, label_smoothing={label_smoothing}"
        defaults = weight is None and ignore_index == -100 and label_smoothing == 0
        limits.MEAN_GRADIENT.require(reduction != "mean" or defaults, given)
        limits.SUM_GRADIENT.require(reduction == "mean" or label_smoothing == 0, given)
    log_prob = wide(self).log_softmax(-1)
    classes = self.shape[1]
    weights = torch.ones(classes, dtype=log_prob.dtype) if weight is None else wide(weight).to(log_prob.dtype)
    counted = _counted(target, ignore_index).to(log_prob.dtype)
    of_target = weights[target] * counted
    exact = -log_prob.gather(1, target[:, None]).squeeze(1) * of_target
    smooth = -(log_prob * weights).sum(1) * counted
    loss = (1 - label_smoothing) * exact + label_smoothing / classes * smooth
    if reduction != "none":
        loss = loss.sum().reshape(1)
    if reduction == "mean":
        loss = loss / of_target.sum()
    empty = self.detach().new_empty(0)
    return loss.to(self.dtype), log_prob.to(self.dtype), empty, empty.clone()


@kernel("npu_cross_entropy_loss_backward", needs_a2=True)
def cross_entropy_loss_backward(
    grad_loss: torch.Tensor,
    log_prob: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    grad_zloss: torch.Tensor | None,
    lse_for_zloss: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    """Return the gradient of the input, [N, C], in the dtype of ``grad_loss``; zloss is not implemented yet."""
    logs = wide(log_prob)
    classes = logs.shape[1]
    weights = torch.ones(classes, dtype=logs.dtype) if weight is None else wide(weight).to(logs.dtype)
    counted = _counted(target, ignore_index).to(logs.dtype)
    of_target = weights[target] * counted
    # d loss_n / d log_prob, backpropagated through log_softmax.
    slope = -(label_smoothing / classes) * weights * counted[:, None]
    slope = slope.scatter_add(1, target[:, None], -(1 - label_smoothing) * of_target[:, None])
    scale = wide(grad_loss).expand(logs.shape[0])
    if reduction == "mean":
        scale = scale / of_target.sum()
    slope = slope * scale[:, None]
    return (slope - logs.exp() * slope.sum(1, keepdim=True)).to(grad_loss.dtype)


def _counted(target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    return target != ignore_index if ignore_index >= 0 else torch.ones_like(target, dtype=torch.bool)


def _require(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    found = f"input is {dtype(x)} {shape(x)}, target is {dtype(target)} {shape(target)}"
    if weight is not None:
        found += f", weight is {dtype(weight)} {shape(weight)}"
    fits = x.dim() == 2 and x.shape[0] in limits.ROWS and x.shape[1] > 0 and list(target.shape) == [x.shape[0]]
    limits.SHAPES.require(fits and (weight is None or list(weight.shape) == [x.shape[1]]), found)
    right = x.dtype in FLOATS and target.dtype == torch.int64 and (weight is None or weight.dtype == torch.float32)
    limits.DTYPES.require(right, found)
    limits.REDUCTION.require(reduction in ("mean", "sum", "none"), f"reduction is {reduction!r}")
    limits.SMOOTHING.require(0 <= label_smoothing < 1, f"label_smoothing is {label_smoothing}")
    limits.IGNORE_INDEX.require(ignore_index < x.shape[1], f"ignore_index is {ignore_index}, C is {x.shape[1]}")
    known = values.of(target)
    if known is None or not known.numel():
        return
    low, high = int(known.min()), int(known.max())
    limits.TARGET_RANGE.require(low >= 0 and high < x.shape[1], f"targets are in [{low}, {high}], C is {x.shape[1]}")
