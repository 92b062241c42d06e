"""Vocabulary-parallel cross entropy of a linear layer, and its gradient.

Each rank has the part of the vocabulary from vocab_start_index to before vocab_end_index, and computes its statistics
with npu_fused_linear_online_max_sum. The caller reduces them over the ranks, and passes them to the other operators.
Source of the arithmetic: op-plugin@517f2e7 docs of the three operators. They call the end inclusive and do not state
the order of the bits; CANN's kernel (ops-nn@ff22fc1c matmul/fused_linear_online_max_sum) decides both.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ascend_adapt.emulation.full_size import values
from ascend_adapt.emulation.operators.dropout_mask import packed, unpacked
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import linear_cross_entropy as limits
from ascend_adapt.npu_limits.limit import LimitNotKept

_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64)


@kernel("npu_fused_linear_online_max_sum", needs_a2=True)
def linear_online_max_sum(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Return for each row the largest logit, the sum of exp(logit - largest), and logit - largest of the target.

    Also return a mask with one bit for each row, set where the target is in another part; the targets counted from the
    start of this part, 0 where the bit is set; and the logits or None.
    """
    found = _listed(input=input, weight=weight, target=target)
    limits.DTYPES.require(_are_halves(input, weight) and target.dtype in _INTEGERS, found)
    fits = _is_product(input, weight) and weight.shape[0] > 0 and list(target.shape) == [input.shape[0]]
    limits.SHAPES.require(fits and input.shape[1] in limits.INNER_SIZES, found)
    start, end = vocab_start_index, vocab_end_index
    found = f"vocab_start_index={start}, vocab_end_index={end}, weight is {shape(weight)}"
    limits.RANGE.require(0 <= start <= end, found)
    limits.ROWS_OF_WEIGHT.require(end - start <= weight.shape[0], found)
    logits = wide(input) @ wide(weight).T
    largest = logits.amax(-1)
    below = logits - largest[:, None]
    padded = functional.pad(target, (0, -target.numel() % 8))
    is_elsewhere = (padded < start) | (padded >= end)
    masked = is_elsewhere[: target.numel()]
    masked_target = (target - start).masked_fill(masked, 0)
    predicted = below.gather(1, masked_target.long()[:, None]).squeeze(1).masked_fill(masked, 0)
    results = (largest.float(), below.exp().sum(-1).float(), predicted.float())
    return *results, packed(is_elsewhere, 8), masked_target, logits.to(input.dtype) if return_logits else None


@kernel("npu_fused_cross_entropy_loss_with_max_sum", needs_a2=True)
def cross_entropy_loss_with_max_sum(
    logits_max: torch.Tensor,
    sum_exp_logits: torch.Tensor,
    predicted_logits: torch.Tensor,
    label_smoothing: float | None,
    input: torch.Tensor | None,
    weight: torch.Tensor | None,
    vocab_parallel_logits: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the loss of each row, and the softmax in float32 if the logits are given."""
    logits = vocab_parallel_logits
    found = _listed(logits_max=logits_max, sum_exp_logits=sum_exp_logits, predicted_logits=predicted_logits)
    rows = (logits_max, sum_exp_logits, predicted_logits)
    fits = all(one.dtype == torch.float32 and one.shape == logits_max.shape and one.dim() == 1 for one in rows)
    if logits is not None:
        found += f", {_listed(vocab_parallel_logits=logits)}"
        fits = fits and logits.dtype in FLOATS and logits.dim() == 2 and logits.shape[0] == len(logits_max)
    limits.LOSS_TENSORS.require(fits, found)
    given = f"label_smoothing={label_smoothing}, input is {_presence(input)}, weight is {_presence(weight)}"
    limits.LOSS_OPTIONS.require(not label_smoothing and input is None and weight is None, given)
    loss = wide(sum_exp_logits).log() - wide(predicted_logits)
    return loss.float(), None if logits is None else _softmax(wide(logits), logits_max, sum_exp_logits).float()


@kernel("npu_fused_linear_cross_entropy_loss_with_max_sum_backward", needs_a2=True)
def linear_cross_entropy_loss_with_max_sum_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    target_mask: torch.Tensor,
    masked_target: torch.Tensor,
    label_smoothing: float,
    logits_max: torch.Tensor | None,
    sum_exp_logits: torch.Tensor | None,
    softmax: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the input and of the weight, of this part of the vocabulary."""
    limits.GRADIENT_SMOOTHING.require(label_smoothing == 0, f"label_smoothing={label_smoothing}")
    _require_gradient(grad, input, weight, target_mask, masked_target)
    if softmax is not None:
        _require_statistics((input.shape[0], weight.shape[0]), softmax=softmax)
        shares = wide(softmax)
    elif logits_max is not None and sum_exp_logits is not None:
        _require_statistics((input.shape[0],), logits_max=logits_max, sum_exp_logits=sum_exp_logits)
        shares = _softmax(wide(input) @ wide(weight).T, logits_max, sum_exp_logits)
    else:
        given = f"logits_max is {_presence(logits_max)}, sum_exp_logits is {_presence(sum_exp_logits)}"
        raise LimitNotKept(limits.GRADIENT_MODES, f"softmax is None, {given}")
    is_here = ~unpacked(target_mask, input.shape[0])
    slope = shares.scatter_add(1, masked_target.long()[:, None], -is_here.to(shares.dtype)[:, None])
    # The kernel multiplies in the dtype of the input, and sums in float32.
    slope = wide((slope * wide(grad)[:, None]).to(input.dtype))
    return (slope @ wide(weight)).to(input.dtype), (slope.T @ wide(input)).to(input.dtype)


def _softmax(logits: torch.Tensor, logits_max: torch.Tensor, sum_exp_logits: torch.Tensor) -> torch.Tensor:
    return (logits - wide(logits_max)[:, None]).exp() / wide(sum_exp_logits)[:, None]


def _require_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, target_mask: torch.Tensor, masked_target: torch.Tensor
) -> None:
    found = _listed(grad=grad, input=x, weight=weight, target_mask=target_mask, masked_target=masked_target)
    right = grad.dtype == torch.float32 and _are_halves(x, weight) and masked_target.dtype in _INTEGERS
    limits.GRADIENT_DTYPES.require(right and target_mask.dtype == torch.uint8, found)
    fits = _is_product(x, weight) and weight.shape[0] >= limits.VOCABULARY_FROM
    fits = fits and list(grad.shape) == list(masked_target.shape) == [x.shape[0]]
    limits.GRADIENT_SHAPES.require(fits and target_mask.dim() == 1 and 8 * len(target_mask) >= x.shape[0], found)
    known = values.of(masked_target)
    if known is not None and known.numel():
        low, high = int(known.min()), int(known.max())
        found = f"masked_target is in [{low}, {high}], V is {weight.shape[0]}"
        limits.TARGET_RANGE.require(low >= 0 and high < weight.shape[0], found)


def _require_statistics(size: tuple[int, ...], **tensors: torch.Tensor) -> None:
    found = _listed(**tensors)
    limits.GRADIENT_DTYPES.require(all(one.dtype == torch.float32 for one in tensors.values()), found)
    limits.GRADIENT_SHAPES.require(all(one.shape == size for one in tensors.values()), found)


def _are_halves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return x.dtype == weight.dtype and x.dtype in _HALVES


def _is_product(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return bool(x.dim() == 2 and weight.dim() == 2 and x.shape[1] == weight.shape[1])


def _listed(**tensors: torch.Tensor) -> str:
    return ", ".join(f"{name} is {dtype(tensor)} {shape(tensor)}" for name, tensor in tensors.items())


def _presence(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else "given"
