"""Gradient processing between the backward passes and the optimizer: reduction, norms, scaling and clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ascend_adapt import kernels
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import WORDS, Placed

EPSILON = 1e-6
"""Added to the norm in gradient clipping, as in Megatron-LM and DeepSpeed."""


@dataclass(frozen=True)
class Norms:
    """Norms of tensors, one per parameter, fp32 [parameters], which the device may still be computing."""

    parameters: Sequence[Placed]
    numbers: torch.Tensor

    @classmethod
    def of(cls, there: Sequence[tuple[Placed, torch.Tensor]]) -> Norms:
        """Return the norms of tensors, one per parameter."""
        # Grouped by dtype, because the kernel takes tensors of one dtype.
        parameters: list[Placed] = []
        norms: list[torch.Tensor] = []
        for places in by_dtype([tensor for _, tensor in there]):
            group = [there[place] for place in places]
            norms.append(kernels.l2_norms([tensor for _, tensor in group]))
            parameters += [one for one, _ in group]
        if not norms:
            return cls(parameters, torch.zeros(0))
        return cls(parameters, (norms[0] if len(norms) == 1 else torch.cat(norms)).float())

    def not_finite(self) -> tuple[str, ...]:
        """Return the names of the parameters whose norm is NaN or Inf."""
        finite = self.numbers.isfinite().tolist()
        return tuple(one.name for one, is_finite in zip(self.parameters, finite, strict=True) if not is_finite)


def by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return the indices of the tensors of each dtype: torch handles tensors of one dtype together, in a few kernels.

    Under sequence parallelism the gradients of norms and some biases are fp32, beside 16-bit ones.
    """
    places: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    return list(places.values())


@torch.no_grad()
def complete(parameters: Sequence[Placed], mesh: Mesh, *, tied: bool) -> None:
    """All-reduce partial gradients over tensor-parallel ranks, and a ``tied`` embedding's over its two stages.

    Under sequence parallelism, the gradients of norms, of biases after row-parallel layers and of positions are
    partial: each rank has a part of the sequence. Data-parallel reduction must come first.
    """
    if mesh.parallel.sequence:
        _all_reduce([one for one in parameters if one.layout.partial], mesh.group("tensor"))
    if tied:
        _all_reduce([one for one in parameters if one.name == WORDS], mesh.embedding_group)


@torch.no_grad()
def norms(parameters: Sequence[Placed]) -> Norms:
    """Return the norm of each gradient on this rank."""
    return Norms.of([(one, gradient) for one in parameters if (gradient := one.gradient) is not None])


@torch.no_grad()
def reduced(
    each: Norms,
    loss: torch.Tensor,
    marks: torch.Tensor,
    mesh: Mesh,
) -> torch.Tensor:
    """Return the global gradient norm, the loss of all data-parallel ranks and the sums of ``marks``, fp32 [2 + marks].

    ``each`` is the result of ``norms``; every element counts once. ``loss`` is this rank's two sums from
    PipelineSchedule. One collective makes all values equal on every rank. The norm is NaN or Inf if any rank's gradient
    is.
    """
    squares = each.numbers.to(mesh.device).square()
    counted = [number for number, one in enumerate(each.parameters) if counts(one, mesh)]
    total = squares.sum()
    if len(counted) < len(squares):
        # A replica that another rank counts may have overflowed on this rank only, so it adds 0 if finite, else NaN.
        mine = torch.stack([squares[number] for number in counted]) if counted else squares[:0]
        total = mine.sum() + 0 * total
    share = counted_once(loss, mesh)
    sums = mesh.sum_over_all(torch.cat([torch.stack([total, *share]), marks]))
    return torch.cat([sums[:1].sqrt(), sums[1:2] / sums[2:3], sums[3:]])


def counted_once(loss: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return the two loss sums, fp32, on the first tensor-parallel rank, and zeros on its replicas."""
    return loss.float() if mesh.tensor_rank == 0 else torch.zeros_like(loss, dtype=torch.float32)


@torch.no_grad()
def weight_norms(parameters: Sequence[Placed]) -> Norms:
    """Return the norm of each parameter on this rank."""
    return Norms.of([(one, numbers) for one in parameters if (numbers := one.local).numel()])


@torch.no_grad()
def norm_and_zeros(parameters: Sequence[Placed], mesh: Mesh) -> tuple[float, float]:
    """Return the norm of all parameters and the number of zeros in their gradients, as Megatron logs them."""
    mine = [one for one in parameters if counts(one, mesh)]
    squares = [torch.linalg.vector_norm(one.local, dtype=torch.float32).square() for one in mine]
    zeros = [(one.gradient == 0).sum().float() for one in mine if one.gradient is not None]
    sums = torch.zeros(2, device=mesh.device)
    for place, numbers in enumerate((squares, zeros)):
        for number in numbers:
            sums[place] += number.to(mesh.device)
    mesh.sum_over_all(sums)
    return float(sums[0].sqrt()), float(sums[1])


def counts(one: Placed, mesh: Mesh) -> bool:
    """Return whether a parameter counts on this rank, rather than on another rank with a replica."""
    if one.layout.copy_of is not None:
        return False
    if one.layout.cut is None and mesh.tensor_rank != 0:
        return False
    return mesh.parallel.zero_stage > 0 or mesh.data_rank == 0


@torch.no_grad()
def scale(parameters: Sequence[Placed], factor: torch.Tensor | float) -> None:
    """Multiply every gradient by a factor, in place."""
    for one in parameters:
        one.widen_gradient()
    there = [gradient for one in parameters if (gradient := one.gradient) is not None]
    if there:
        torch._foreach_mul_(there, factor if isinstance(factor, float) else factor.to(there[0].device))


def clip_factor(norm: torch.Tensor, limit: float) -> torch.Tensor | None:
    """Return the factor that clips the gradients to a global norm of ``limit``, fp32 []; None if ``limit`` is 0."""
    return (limit / (norm + EPSILON)).clamp(max=1.0) if limit > 0 else None


def found_inf(norm: torch.Tensor) -> torch.Tensor:
    """Return 1 if the global gradient norm is NaN or Inf, else 0, fp32 [], without waiting for the device."""
    return (0 * norm).nan_to_num(1.0)


def _all_reduce(parameters: Sequence[Placed], group: Any) -> None:
    """All-reduce gradients over a group in one collective, in place."""
    if group is None:
        return
    for one in parameters:
        one.widen_gradient()
    there = [gradient for one in parameters if (gradient := one.gradient) is not None]
    if there:
        flat = torch.cat([each.reshape(-1) for each in there])
        dist.all_reduce(flat, group=group)
        for each, summed in zip(there, flat.split([each.numel() for each in there]), strict=True):
            each.copy_(summed.view_as(each))
