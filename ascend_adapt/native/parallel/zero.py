"""ZeRO: fp32 master weights, sharded or not, and the copies that modules compute with.

FSDP does the same block by block and parameter by parameter, and takes more than twice the host time per step. Here
each step starts all copies at once, and the forward pass waits for the copies of a module before it calls the module;
ZeRO-3 gathers the matrices of blocks for each pass instead (``native.parallel.block_weights``). Gradients are cast,
accumulated and reduced in buckets of many parameters, each bucket as soon as the backward pass has produced them.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ascend_adapt.config.buckets import in_buckets
from ascend_adapt.kernels.wide_products import add_product, are_fused
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel.accumulation import ComputeWeight
from ascend_adapt.native.parallel.block_weights import BlockWeights
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Declared, MasterWeight, rows_of_shard

ALIGNMENT = 128
"""Alignment of copies in shared memory, in elements: kernels read aligned matrices faster."""

_Name = tuple[Declared, str]
"""A module and the name of one of its parameters."""


class ComputeWeights:
    """Compute weights of ``model``, whose parameters are on the meta device; master weights are this rank's rows.

    ``dtype`` is the dtype of the copies; ``sums`` is the dtype in which gradients are accumulated over micro batches
    and reduced over data-parallel ranks. ZeRO-2 and -3 reduce after every backward pass, ZeRO-0 and -1 after the last.
    ``blocks`` are the blocks of ``model`` in order, whose matrices ZeRO-3 gathers for each pass.
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[nn.Module], mesh: Mesh, dtype: torch.dtype, sums: torch.dtype
    ) -> None:
        self._reduces_each = mesh.parallel.zero_stage >= 2
        self._is_last = False
        self._begun = 0
        """Number of backward passes of this step so far."""
        self._reducing: _Bucket | None = None
        runs = list(in_buckets(blocks, _all_elements)) if mesh.parallel.zero_stage == 3 else []
        matrices = [[one for block in run for one in _names(block) if _is_matrix(one)] for run in runs]
        gathered_again = {one for each in matrices for one in each}
        # The backward pass produces gradients roughly in reverse order of the modules.
        groups = list(in_buckets([one for one in _names(model) if one not in gathered_again][::-1], _elements))
        self._kept = [_Bucket(each, mesh, dtype, sums) for each in groups]
        """Buckets whose copies stay in memory."""
        self._holders = [{module for module, _ in each} for each in groups]
        self._buckets = list(self._kept)
        self._blocks: BlockWeights | None = None
        if runs:
            size = max(sum(_padded_size(one, mesh.shards) for one in each) for each in matrices)
            shared = torch.empty(size, dtype=dtype, device=mesh.device)
            buckets = [_Bucket(each, mesh, dtype, sums, shared) for each in matrices]
            self._buckets += buckets
            numbers = {block: number for number, run in enumerate(runs) for block in run}
            self._blocks = BlockWeights(buckets, numbers | {model: len(runs)})
        self._arriving: dict[int, Callable[[], None]] = {}
        """Functions that complete the copies of the buckets that are being gathered."""
        # Python's garbage collector cannot traverse such a hook: a copy that its hook refers to is never freed.
        mine = weakref.proxy(self)
        ready = functools.partial(ComputeWeights._gradient_ready, mine)
        for number, bucket in enumerate(self._buckets):
            for place, copy in enumerate(bucket.copies):
                copy.register_post_accumulate_grad_hook(functools.partial(ready, number, place))
                if isinstance(copy, ComputeWeight):
                    copy.add_product = functools.partial(ComputeWeights._add_product, mine, number, place)

    @torch.no_grad()
    def refresh(self) -> None:
        """Start copying the master weights, which the optimizer or a checkpoint may have changed."""
        numbers = reversed(range(len(self._kept)))
        started = {number: self._kept[number].refresh() for number in numbers}
        self._arriving = {number: finish for number, finish in started.items() if finish is not None}
        if self._blocks is not None:
            self._blocks.restart()

    @torch.no_grad()
    def arrive(self, module: nn.Module, *inputs: torch.Tensor) -> None:
        """Wait for the copies of ``module``'s parameters; the forward pass calls this before it uses them.

        ``inputs`` are the activations that the module is called with next.
        """
        if self._arriving:
            inside = set(module.modules())
            for number in [number for number in self._arriving if self._holders[number] & inside]:
                self._arriving.pop(number)()
        if self._blocks is not None:
            self._blocks.enter(module, inputs)

    def begin_backward(self, *, is_last: bool) -> None:
        """Begin a backward pass; ``is_last``: whether it is the last of the step."""
        self._is_last = is_last
        self._begun += 1
        for bucket in self._buckets:
            bucket.missing = set(range(len(bucket.copies)))

    @torch.no_grad()
    def set_master_gradients(self) -> None:
        """Set the gradients of the master weights: fp32, or in 16 bits if the step had a single backward pass."""
        self._begun = 0
        for bucket in self._buckets:
            bucket.set_master_gradients()

    def abandon(self) -> None:
        """Drop the gradients that failed passes have left: the next passes would add to them."""
        self._begun, self._reducing, self._arriving = 0, None, {}
        if self._blocks is not None:
            self._blocks.forget()
        for bucket in self._buckets:
            bucket.abandon()

    @property
    def _is_only(self) -> bool:
        """Whether this backward pass is the only one of the step."""
        return self._is_last and self._begun == 1

    @torch.no_grad()
    def _add_product(self, number: int, place: int, left: torch.Tensor, right: torch.Tensor) -> bool:
        """Add left @ right to the gradient ``place`` of a bucket; return False if gradients are not accumulated."""
        bucket = self._buckets[number]
        if not bucket.in_place and (self._reduces_each or self._is_only):
            return False
        bucket.add_product(place, left, right)
        self._gradient_ready(number, place)
        return True

    @torch.no_grad()
    def _gradient_ready(self, number: int, place: int, _: torch.Tensor | None = None) -> None:
        """Record a gradient of a bucket. Data-parallel ranks have the same graph, so buckets fill in the same order."""
        bucket = self._buckets[number]
        # For a gradient that its product has added, torch 2.13 calls the parameter's hook too.
        if place not in bucket.missing:
            return
        bucket.missing.remove(place)
        if bucket.missing:
            return
        reduces = self._is_last or self._reduces_each
        bucket.add_gradients(is_last=reduces, is_only=self._is_only)
        if reduces:
            if self._reducing is not None:
                self._reducing.wait()  # otherwise the buffers of all buckets would be allocated at once
            bucket.reduce()
            self._reducing = bucket


class _Bucket:
    """Bucket: parameters that are copied together, and whose gradients are reduced together.

    The copies are in ``shared`` if it is given: memory that holds the copies of one of several buckets at a time.
    """

    def __init__(
        self,
        names: Sequence[_Name],
        mesh: Mesh,
        dtype: torch.dtype,
        sums: torch.dtype,
        shared: torch.Tensor | None = None,
    ) -> None:
        self._ranks, self._shards, self._sums_dtype = mesh.parallel.data, mesh.shards, sums
        self._group = mesh.group("shard" if mesh.shards > 1 else "replicate")
        self.masters: list[MasterWeight] = []
        self.copies: list[nn.Parameter] = []
        self.missing: set[int] = set()
        """The places of the gradients that this backward pass has not produced yet."""
        self._padded: list[torch.Tensor] = []
        """The copies, padded to the same number of rows for each rank."""
        self._sizes: list[int] = []
        """For each parameter, the numbers of elements and of padding on this rank; their sum is equal on all ranks."""
        self._sums: list[torch.Tensor] = []
        self._added: set[int] = set()
        """The places of ``_sums`` that hold gradients."""
        self._flat: torch.Tensor | None = None
        """The buffer that ``_sums`` are views of."""
        self._pending: tuple[Any, torch.Tensor, torch.Tensor] | None = None
        """A reduction in flight: its work handle, this rank's part, and its input, which must outlive it."""
        self._reduced: torch.Tensor | None = None
        self._keeps = self._ranks == 1 and dtype == torch.bfloat16
        """Whether the gradients of a single backward pass stay in 16 bits. fp16's do not, because they are scaled."""
        self._kept: list[torch.Tensor] = []
        for one in names:
            memory = None
            if shared is not None:
                size = _padded_size(one, self._shards)
                memory, shared = shared[:size], shared[size:]
            self._add(one, mesh, dtype, memory)
        pairs = zip(self._padded, self.copies, strict=True)
        is_even = all(padded.numel() == copy.numel() for padded, copy in pairs)
        self.in_place = self._shards > 1 and is_even and are_fused(mesh.device)
        """Whether gradients are written where the reduction reads them, without a copy: all ranks have equal rows."""

    def _add(self, one: _Name, mesh: Mesh, dtype: torch.dtype, memory: torch.Tensor | None) -> None:
        module, name = one
        rows, *others = getattr(module, name).shape
        mine = rows_of_shard(rows, self._shards, mesh.shard_rank)
        each = -(-rows // self._shards)
        master = MasterWeight(torch.empty(mine.stop - mine.start, *others, device=mesh.device))
        master.is_copied_by_optimizer = mesh.parallel.zero_stage < 3
        if memory is not None:
            size = each * self._shards * math.prod(others)
            # ``data`` does not share the version counter, by which autograd would see that other weights were
            # written to this memory between a forward pass and its backward pass.
            padded = memory.data[:size].view(each * self._shards, *others)
            copy = ComputeWeight(padded.data[:rows])
        elif self._shards == 1 and dtype == master.dtype:
            padded, copy = master.detach(), master
        else:
            padded = torch.empty(each * self._shards, *others, dtype=dtype, device=mesh.device)
            copy = ComputeWeight(padded[:rows])
        module.compute_with(name, copy, master)
        self.masters.append(master)
        self.copies.append(copy)
        self._padded.append(padded.view(self._shards, -1))
        whole = padded.numel() // self._shards
        self._sizes += [master.numel(), whole - master.numel()]

    def refresh(self) -> Callable[[], None] | None:
        """Start copying the master weights; return a function that completes the copy, or None if it is complete."""
        if self._shards == 1:
            pairs = zip(self.copies, self.masters, strict=True)
            stale = [(copy, master) for copy, master in pairs if copy is not master and not _is_copied(master)]
            if stale:
                torch._foreach_copy_([copy for copy, _ in stale], [master for _, master in stale])
            for _, master in stale:
                master.copied_at = master._version
            return None
        return self.gather()

    def gather(self) -> Callable[[], None]:
        """Start gathering the master weights of all ranks; return a function that writes the copies."""
        if self._shards == 1:
            masters = [one.view(1, -1) for one in self.masters]
            return functools.partial(torch._foreach_copy_, self._padded, masters)
        mine = self._padded[0].new_empty(sum(self._sizes))
        torch._foreach_copy_(self._own(mine), [one.view(-1) for one in self.masters])
        gathered = mine.new_empty(self._shards, len(mine))
        work = collectives.all_gather(gathered.view(-1), mine, self._group, async_op=True)

        def finish() -> None:
            work.wait()
            torch.split_with_sizes_copy(gathered, [one.shape[1] for one in self._padded], dim=1, out=self._padded)

        return finish

    def add_product(self, place: int, left: torch.Tensor, right: torch.Tensor) -> None:
        """Accumulate left @ right as the gradient of the parameter ``place``."""
        add_product(self._accumulated()[place], left, right, overwrite=place not in self._added)
        self._added.add(place)

    def add_gradients(self, *, is_last: bool, is_only: bool) -> None:
        """Accumulate the bucket's gradients, all of which are ready.

        ``is_last``: the gradients are reduced next; ``is_only``: no other pass of the step adds to them.
        """
        found = {place: one.grad for place, one in enumerate(self.copies) if one.grad is not None}
        for one in self.copies:
            one.grad = None
        if self._keeps and is_only and len(found) == len(self.masters):
            self._kept = list(found.values())
            return
        if is_last and self._shards > 1 and not self._sums and not self.in_place:
            self._sums = list(found.values())  # _chunk_cat casts them
            return
        sums = self._accumulated()
        for places, add in (
            ([place for place in found if place in self._added], torch._foreach_add_),
            ([place for place in found if place not in self._added], torch._foreach_copy_),
        ):
            if places:
                add([sums[place] for place in places], [found[place].view_as(sums[place]) for place in places])
        self._added |= set(found)

    def _accumulated(self) -> list[torch.Tensor]:
        """Return the sum of each gradient: fp32, uninitialised where its place is not in ``_added``.

        If they are accumulated in place, their shape is [ranks, rows per rank, ...].
        """
        if not self._sums and self.in_place:
            self._flat = self.copies[0].new_empty(self._shards, sum(self._sizes), dtype=self._sums_dtype)
            parts = zip(self._flat.split(self._sizes[::2], 1), self.copies, strict=True)
            self._sums = [part.view(self._shards, -1, *copy.shape[1:]) for part, copy in parts]
        elif not self._sums:
            sizes = [one.numel() for one in self.copies]
            self._flat = self.copies[0].new_empty(sum(sizes), dtype=self._sums_dtype)
            parts = zip(self._flat.split(sizes), self.copies, strict=True)
            self._sums = [part.view(copy.shape) for part, copy in parts]
        return self._sums

    def reduce(self) -> None:
        """Start the reduction to the mean over data-parallel ranks."""
        if self._kept:
            return
        if self._shards == 1:
            assert self._flat is not None
            flat = mine = self._flat
        elif self.in_place:
            assert self._flat is not None
            flat, mine = self._flat, torch.empty_like(self._flat[0])
        else:
            flat = self._sums[0].new_empty(self._shards, sum(self._sizes), dtype=self._sums_dtype)
            torch._chunk_cat(self._sums, 0, self._shards, out=flat)
            mine = torch.empty_like(flat[0])
        self._sums, self._added, self._flat, work = [], set(), None, None
        if self._ranks > 1:
            # Divided before the sum, which could overflow in fp16. NCCL's mean divides in the same kernel.
            op = dist.ReduceOp.AVG if flat.device.type == "cuda" else dist.ReduceOp.SUM
            if op == dist.ReduceOp.SUM:
                flat.div_(self._ranks)
            if self._shards == 1:
                work = dist.all_reduce(flat, op, group=self._group, async_op=True)
            else:
                work = collectives.reduce_scatter(mine, flat.view(-1), self._group, op=op, async_op=True)
        self._pending = work, mine, flat

    def wait(self) -> None:
        """Wait for the reduction in flight and accumulate its result in fp32."""
        if self._pending is None:
            return
        work, mine, _ = self._pending
        if work is not None:
            work.wait()
        self._reduced = mine.float() if self._reduced is None else self._reduced.add_(mine)
        self._pending = None

    def set_master_gradients(self) -> None:
        """Set the gradients of this bucket's master weights."""
        if self._kept:
            for master, gradient in zip(self.masters, self._kept, strict=True):
                master.narrow_gradient = gradient
            self._kept = []
            return
        self.wait()
        assert self._reduced is not None
        for master, part in zip(self.masters, self._own(self._reduced), strict=True):
            master.grad = part.view(master.shape)
        self._reduced = None

    def abandon(self) -> None:
        """Drop all gradients of this bucket, and copy the master weights again: a capture only records its copies."""
        self._sums, self._kept, self._flat, self._pending, self._reduced = [], [], None, None, None
        self._added = set()
        for copy, master in zip(self.copies, self.masters, strict=True):
            copy.grad = master.copied_at = None

    def _own(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return this rank's elements of each parameter as views of ``flat``."""
        parts: Sequence[torch.Tensor] = flat.split(self._sizes)
        return parts[::2]


def _is_copied(master: MasterWeight) -> bool:
    return bool(master.is_copied_by_optimizer and master.copied_at == master._version)


def _names(model: nn.Module) -> list[_Name]:
    """Return the parameters of a model in order."""
    return [(module, name) for module in model.modules() if isinstance(module, Declared) for name in module.layouts]


def _is_matrix(one: _Name) -> bool:
    module, name = one
    return bool(getattr(module, name).dim() > 1)


def _elements(one: _Name) -> int:
    module, name = one
    return int(getattr(module, name).numel())


def _all_elements(block: nn.Module) -> int:
    return sum(_elements(one) for one in _names(block))


def _padded_size(one: _Name, shards: int) -> int:
    """Return the number of elements of a parameter with equal rows on each rank, rounded up to ALIGNMENT."""
    module, name = one
    rows, *others = getattr(module, name).shape
    size: int = -(-rows // shards) * shards * math.prod(others)
    return -(-size // ALIGNMENT) * ALIGNMENT
