"""Slicing, reshaping, sorting and extrema under torch_npu's names.

Source: op-plugin@517f2e7 docs (beta)torch_npu-npu_slice.md and the pages next to it; Ascend/pytorch test/custom_ops.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import slicing as limits


@kernel("npu_slice", "npu_slice.out")
def slice_(self: torch.Tensor, offsets: list[int], size: list[int], out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the block of ``size`` at ``offsets``; a size of -1 extends to the end."""
    found = f"offsets are {list(offsets)}, size is {list(size)}, input is {shape(self)}"
    limits.BLOCK.require(len(offsets) == len(size) == self.dim(), found)
    result = self.detach()
    for axis, (start, length) in enumerate(zip(offsets, size, strict=True)):
        whole = self.shape[axis]
        length = whole - start if length == -1 else length
        limits.BLOCK.require(0 <= start <= start + length <= whole, found)
        result = result.narrow(axis, start, length)
    return _into(out, result)


@kernel("npu_indexing", "npu_indexing.out")
def indexing(
    self: torch.Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return self[begin:end:strides]; bit i of a mask omits a begin or end, or makes entry i ``...``, None or int."""
    found = f"begin is {list(begin)}, end is {list(end)}, strides are {list(strides)}, input is {shape(self)}"
    limits.STRIDES.require(len(begin) == len(end) == len(strides) and all(step > 0 for step in strides), found)
    index: list[object] = []
    for place, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << place
        if ellipsis_mask & bit:
            index.append(Ellipsis)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(start)
        else:
            index.append(slice(None if begin_mask & bit else start, None if end_mask & bit else stop, step))
    return _into(out, self.detach()[tuple(index)])


@kernel("npu_pad")
def pad(input: torch.Tensor, paddings: list[int]) -> torch.Tensor:
    """Pad the input with zeros; ``paddings`` holds the numbers before and after each dimension, from the first on."""
    limits.PADDINGS.require(len(paddings) == 2 * input.dim(), f"paddings are {list(paddings)}, input is {shape(input)}")
    pairs = [paddings[place : place + 2] for place in range(0, len(paddings), 2)]
    return torch.nn.functional.pad(input.detach(), [number for pair in reversed(pairs) for number in pair])


@kernel("npu_broadcast", "npu_broadcast.out")
def broadcast(self: torch.Tensor, size: list[int], out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the input repeated to ``size``."""
    return _into(out, self.detach().broadcast_to(size))


@kernel("npu_reshape", "npu_reshape.out")
def reshape(
    self: torch.Tensor, shape: list[int], can_refresh: bool = False, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the input in another shape."""
    return _into(out, self.detach().reshape(shape))


@kernel("npu_stride_copy", "npu_stride_copy.out")
def stride_copy(
    self: torch.Tensor, shape: list[int], stride: list[int], storage_offset: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a copy of the input's elements at these strides."""
    return _into(out, self.detach().as_strided(shape, stride, int(storage_offset)))


@kernel("npu_sort_v2", "npu_sort_v2.out")
def sort(self: torch.Tensor, dim: int, descending: bool, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the sorted values, without their indices."""
    return _into(out, self.detach().sort(dim, descending)[0])


@kernel("npu_max.dim")
def maximum(self: torch.Tensor, dim: int, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima along ``dim`` and their indices, int32."""
    found, indices = self.detach().max(dim, keepdim)
    return found, indices.to(torch.int32)


@kernel("npu_min.dim")
def minimum(self: torch.Tensor, dim: int, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minima along ``dim`` and their indices, int32."""
    found, indices = self.detach().min(dim, keepdim)
    return found, indices.to(torch.int32)


@kernel("npu_max_backward", "npu_min_backward")
def extremum_backward(
    grad: torch.Tensor, dim: int, indices: torch.Tensor, sizes: list[int], keepdim: bool
) -> torch.Tensor:
    """Return the gradient of the input, of shape ``sizes``; each result's gradient goes to the source element."""
    if not keepdim and len(sizes) > 0:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.detach().new_zeros(sizes).scatter_(dim, indices.long(), grad.detach())


@kernel("npu_one_hot")
def one_hot(self: torch.Tensor, num_classes: int, depth: int, on_value: float, off_value: float) -> torch.Tensor:
    """Return float32 [..., depth] with ``on_value`` at each index; out-of-range indices set nothing."""
    classes = torch.arange(depth, device=self.device)
    hit = self.unsqueeze(-1) == classes
    return hit.float() * (on_value - off_value) + off_value


@kernel("one_")
def fill_with_one(self: torch.Tensor) -> torch.Tensor:
    """Fill the input with ones, and return it."""
    return self.fill_(1)


@kernel("scatter_update")
def scatter_update(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """Return a copy of the input with ``updates`` written as by ``scatter_update_``."""
    return scatter_update_in_place(self.detach().clone(), indices, updates, axis)


@kernel("scatter_update_")
def scatter_update_in_place(
    self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int
) -> torch.Tensor:
    """Write ``updates`` into the input along ``axis``, from a start index that may differ for each first index."""
    return write_blocks(self, indices.reshape(-1), updates, axis)


@kernel("npu_scatter_nd_update")
def scatter_nd_update(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Return a copy of the input with ``updates`` written at ``indices`` [..., K] into its first K dimensions."""
    return scatter_nd_update_in_place(self.detach().clone(), indices, updates)


@kernel("npu_scatter_nd_update_")
def scatter_nd_update_in_place(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Write ``updates`` at ``indices`` [..., K] into the input's first K dimensions."""
    if not self.is_meta:
        self[tuple(indices.long().unbind(-1))] = updates
    return self


@kernel("npu_gather_sparse_index", needs_a2=True)
def gather_rows(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the rows of the input [N, ...] at ``index`` [...], as an embedding does."""
    return input.detach()[index.long()]


@kernel("npu_gather_sparse_index_backward", needs_a2=True)
def gather_rows_backward(grad: torch.Tensor, self_sizes: list[int], index: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input: the sum over the places of a row."""
    rows = wide(grad).reshape(-1, *self_sizes[1:])
    return rows.new_zeros(self_sizes).index_add_(0, index.reshape(-1).long(), rows).to(grad.dtype)


def write_blocks(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """Write each of the ``updates`` along ``axis`` from an index on, and return the tensor.

    ``indices`` [B] are those of the first dimension's entries, one for all entries if it is alone; [B, 2] are pairs of
    an entry and its index.
    """
    if x.is_meta:
        return x
    if indices.numel() == 1:
        x.narrow(axis, int(indices), updates.shape[axis]).copy_(updates)
        return x
    pairs = enumerate(indices.tolist()) if indices.dim() == 1 else indices.tolist()
    for (entry, start), block in zip(pairs, updates.unsqueeze(1), strict=True):
        x[entry : entry + 1].narrow(axis, int(start), block.shape[axis]).copy_(block)
    return x


def _into(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return result.clone(memory_format=torch.contiguous_format) if out is None else out.copy_(result)
