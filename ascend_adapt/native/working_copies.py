"""16-bit copies of fp32 masters, on a data-parallel rank that shares its parameters with no other.

FSDP does the same for one rank, at more than half of the host's time for a step: it gathers and reduces what is there
already, block by block. Here a step casts all parameters at once, and a backward pass all gradients.
"""

from __future__ import annotations

import torch
from torch import nn

from ascend_adapt.native.parameters import Declared


class WorkingCopies:
    """What the modules of ``model`` compute with from now on; the parameters that they had are the masters.

    ``dtype`` is that of the copies, ``sums`` that in which gradients of micro batches are summed.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, sums: torch.dtype) -> None:
        self._sums_dtype = sums
        self._masters: list[nn.Parameter] = []
        self._copies: list[nn.Parameter] = []
        for module in model.modules():
            if isinstance(module, Declared):
                for name in module.layouts:
                    master = getattr(module, name)
                    copy = nn.Parameter(torch.empty_like(master, dtype=dtype))
                    module.compute_with(name, copy)
                    self._masters.append(master)
                    self._copies.append(copy)
        self._sums: list[torch.Tensor | None] = [None] * len(self._copies)

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the masters, which the optimizer or a checkpoint may have changed."""
        torch._foreach_copy_(self._copies, self._masters)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradients that a backward pass has left to the sums, and take them away."""
        given = [(number, one.grad) for number, one in enumerate(self._copies) if one.grad is not None]
        first = [(number, gradient) for number, gradient in given if self._sums[number] is None]
        later = [(total, gradient) for number, gradient in given if (total := self._sums[number]) is not None]
        if first:
            gradients = [gradient for _, gradient in first]
            totals = self._empty_like(gradients)
            torch._foreach_copy_(totals, gradients)
            for (number, _), total in zip(first, totals, strict=True):
                self._sums[number] = total
        if later:
            torch._foreach_add_([total for total, _ in later], [gradient for _, gradient in later])
        for one in self._copies:
            one.grad = None

    def hand_over(self) -> None:
        """Make the sums the masters' gradients, fp32."""
        for master, total in zip(self._masters, self._sums, strict=True):
            if total is not None:
                master.grad = total.to(master.dtype)
        self._sums = [None] * len(self._sums)

    def _empty_like(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors of the same shapes for sums, which lie in one."""
        sizes = [tensor.numel() for tensor in tensors]
        flat = torch.empty(sum(sizes), dtype=self._sums_dtype, device=tensors[0].device)
        return [part.view(tensor.shape) for part, tensor in zip(flat.split(sizes), tensors, strict=True)]
