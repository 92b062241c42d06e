"""What modules compute with, beside the fp32 masters that are trained: copies of 16 bits, or of what ranks share.

FSDP does the same block by block and parameter by parameter, at more than twice the host's time for a step. Here a step
makes all copies at once, and gradients are cast, summed and reduced in buckets of many parameters, each as soon as the
backward pass has come past it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ascend_adapt.native.config.buckets import in_buckets
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Declared, rows_of_shard


class ComputeWeights:
    """What the modules of ``model``, which have shapes only, compute with; masters are this rank's rows, on its device.

    ``dtype`` is that of the copies, ``sums`` that in which gradients of micro batches and of data-parallel ranks are
    summed. Under ZeRO 2 every backward pass is followed by the sum over ranks, under less the last.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, dtype: torch.dtype, sums: torch.dtype) -> None:
        self._reduces_each = mesh.parallel.zero_stage >= 2
        self._is_last = False
        self._reducing: _Bucket | None = None
        # Gradients come in about the opposite order of the modules.
        declared = [one for one in model.modules() if isinstance(one, Declared)]
        names = [(module, name) for module in declared for name in module.layouts][::-1]
        self._buckets = [_Bucket(each, mesh, dtype, sums) for each in in_buckets(names, _numbers)]
        # Python's collector does not see what such a hook holds: a copy that its own hook holds is never freed.
        has_come = functools.partial(ComputeWeights._has_come, weakref.proxy(self))
        for number, bucket in enumerate(self._buckets):
            for copy in bucket.copies:
                copy.register_post_accumulate_grad_hook(functools.partial(has_come, number))

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies of the masters, which the optimizer or a checkpoint may have changed."""
        for finish in [bucket.refresh() for bucket in reversed(self._buckets)]:
            finish()

    def begin_backward(self, *, is_last: bool) -> None:
        """Say whether the backward pass that begins is the step's last."""
        self._is_last = is_last
        for bucket in self._buckets:
            bucket.missing = len(bucket.copies)

    @torch.no_grad()
    def hand_over(self) -> None:
        """Make the sums the masters' gradients, fp32."""
        for bucket in self._buckets:
            bucket.hand_over()

    def _has_come(self, number: int, _: torch.Tensor) -> None:
        """Take note of a bucket's gradient. Data-parallel ranks have one graph, so that buckets fill in one order."""
        bucket = self._buckets[number]
        bucket.missing -= 1
        if bucket.missing:
            return
        reduces = self._is_last or self._reduces_each
        bucket.add_gradients(is_last=reduces)
        if reduces:
            if self._reducing is not None:
                self._reducing.settle()  # or what all buckets are made of would be there at once
            bucket.reduce()
            self._reducing = bucket


class _Bucket:
    """Some parameters, whose copies are made and whose gradients are reduced together."""

    def __init__(
        self, names: Sequence[tuple[Declared, str]], mesh: Mesh, dtype: torch.dtype, sums: torch.dtype
    ) -> None:
        self._ranks, self._shards, self._sums_dtype = mesh.parallel.data, mesh.shards, sums
        self._group = mesh.group("shard" if mesh.shards > 1 else "replicate")
        self.masters: list[nn.Parameter] = []
        self.copies: list[nn.Parameter] = []
        self.missing = 0
        """Gradients that the backward pass has still to give."""
        self._padded: list[torch.Tensor] = []
        """The copies, with as many rows for each rank."""
        self._sizes: list[int] = []
        """Of each parameter, this rank's numbers and what is added to them, so that all ranks' are as many."""
        self._sums: list[torch.Tensor] = []
        self._flat: torch.Tensor | None = None
        """What the sums lie in."""
        self._pending: tuple[Any, torch.Tensor, torch.Tensor] | None = None
        """What is being reduced: what to wait for, this rank's part, and what it is made of, to be kept as long."""
        self._reduced: torch.Tensor | None = None
        for module, name in names:
            self._add(module, name, mesh, dtype)

    def _add(self, module: Declared, name: str, mesh: Mesh, dtype: torch.dtype) -> None:
        rows, *others = getattr(module, name).shape
        mine = rows_of_shard(rows, self._shards, mesh.shard_rank)
        each = -(-rows // self._shards)
        master = nn.Parameter(torch.empty(mine.stop - mine.start, *others, device=mesh.device))
        if self._shards == 1 and dtype == master.dtype:
            padded, copy = master.detach(), master
        else:
            padded = torch.empty(each * self._shards, *others, dtype=dtype, device=mesh.device)
            copy = nn.Parameter(padded[:rows])
        module.compute_with(name, copy, master)
        self.masters.append(master)
        self.copies.append(copy)
        self._padded.append(padded.view(self._shards, -1))
        whole = padded.numel() // self._shards
        self._sizes += [master.numel(), whole - master.numel()]

    def refresh(self) -> Any:
        """Begin to make the copies; return what has to be called to finish."""
        if self._shards == 1:
            if self.copies[0] is not self.masters[0]:
                torch._foreach_copy_(self.copies, self.masters)
            return lambda: None
        mine = self._padded[0].new_empty(sum(self._sizes))
        torch._foreach_copy_(self._own(mine), [one.view(-1) for one in self.masters])
        gathered = mine.new_empty(self._shards, len(mine))
        work = collectives.all_gather(gathered.view(-1), mine, self._group, async_op=True)

        def finish() -> None:
            work.wait()
            torch.split_with_sizes_copy(gathered, [one.shape[1] for one in self._padded], dim=1, out=self._padded)

        return finish

    def add_gradients(self, *, is_last: bool) -> None:
        """Add the gradients, all of which have come, to the sums; ``is_last``: they are reduced then."""
        gradients = [one.grad for one in self.copies if one.grad is not None]
        for one in self.copies:
            one.grad = None
        if self._sums:
            torch._foreach_add_(self._sums, gradients)
        elif is_last and self._shards > 1:
            self._sums = gradients  # what cuts them for the ranks casts them, too
        else:
            sizes = [one.numel() for one in gradients]
            self._flat = gradients[0].new_empty(sum(sizes), dtype=self._sums_dtype)
            parts = zip(self._flat.split(sizes), gradients, strict=True)
            self._sums = [part.view(gradient.shape) for part, gradient in parts]
            torch._foreach_copy_(self._sums, gradients)

    def reduce(self) -> None:
        """Begin to make the mean of the data-parallel ranks' sums, this rank's part of it."""
        if self._shards == 1:
            assert self._flat is not None
            flat = mine = self._flat
        else:
            flat = self._sums[0].new_empty(self._shards, sum(self._sizes), dtype=self._sums_dtype)
            torch._chunk_cat(self._sums, 0, self._shards, out=flat)
            mine = torch.empty_like(flat[0])
        self._sums, self._flat, work = [], None, None
        if self._ranks > 1:
            flat.div_(self._ranks)  # before they are summed, which could overflow in fp16
            if self._shards == 1:
                work = dist.all_reduce(flat, group=self._group, async_op=True)
            else:
                work = collectives.reduce_scatter(mine, flat.view(-1), self._group, async_op=True)
        self._pending = work, mine, flat

    def settle(self) -> None:
        """Wait for what was begun, and add it, in fp32, to what this step has reduced before."""
        if self._pending is None:
            return
        work, mine, _ = self._pending
        if work is not None:
            work.wait()
        self._reduced = mine.float() if self._reduced is None else self._reduced.add_(mine)
        self._pending = None

    def hand_over(self) -> None:
        """Make what was reduced the masters' gradients."""
        self.settle()
        assert self._reduced is not None
        for master, part in zip(self.masters, self._own(self._reduced), strict=True):
            master.grad = part.view(master.shape)
        self._reduced = None

    def _own(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return this rank's numbers of each parameter, one after another in ``flat``."""
        parts: Sequence[torch.Tensor] = flat.split(self._sizes)
        return parts[::2]


def _numbers(one: tuple[Declared, str]) -> int:
    module, name = one
    return int(getattr(module, name).numel())
