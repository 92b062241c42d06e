"""The mask contract that all kernels share.

``masked_out`` is bool, True = masked (as in Megatron and torch_npu). ``bias`` is float and added after scaling; a bias
of minus infinity also masks. ``causal`` is aligned to the last key: query i of Q attends to the keys up to i + K - Q.
``window=w`` is causal, and a query attends to itself and the w - 1 keys before it. ``cu_seqlens`` are the cumulative
lengths of packed documents, which do not attend to each other. ``prefix`` has the number of leading keys of each row
that all queries attend to; the row is causal after them. A fully masked row gives zeros, and zero gradients.

Shapes: B batch, N heads, Q query length, K key length, D head dim.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import tracing
from ascend_adapt.kernels.arguments import describe, is_tensor


def masked_out_from_keep(keep: Any) -> Any:
    """Return ``masked_out`` for a bool mask in torch's convention, True = attend.

    Raises:
        KernelArgumentError: the mask is not bool.
    """
    _check_bool("keep", keep)
    return ~keep


def check_masked_out(masked_out: Any, scores: Sequence[int], device: Any) -> None:
    """Check that a mask is bool, is on ``device``, and broadcasts to the scores [B, N, Q, K]."""
    if masked_out is None:
        return
    _check_bool("masked_out", masked_out)
    _check_fits("masked_out", masked_out, scores, device)


def check_bias(bias: Any, scores: Sequence[int], device: Any) -> None:
    """Check that a bias is float, is on ``device``, and broadcasts to the scores [B, N, Q, K]."""
    if bias is None:
        return
    if not is_tensor(bias) or not bias.dtype.is_floating_point:
        raise KernelArgumentError(
            f"bias: is {describe(bias)}, expected a float tensor that is added to the scores — "
            "pass a bool mask as masked_out=, or as masked_out=masked_out_from_keep(mask) where True means attend"
        )
    _check_fits("bias", bias, scores, device)


def check_window(window: Any) -> None:
    """Check that a window is a positive int."""
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise KernelArgumentError(f"window={window!r}: expected a number of keys, at least 1 — correct it")


def check_cu_seqlens(cu_seqlens: Any, batch: int, queries: int, keys: int, device: Any) -> None:
    """Check that cu_seqlens are int32 [documents + 1] from 0 to the length of the packed row.

    Values on a device are not read, because that would synchronise with the device.
    """
    if cu_seqlens is None:
        return
    if not is_tensor(cu_seqlens) or str(cu_seqlens.dtype) != "torch.int32" or cu_seqlens.dim() != 1:
        raise KernelArgumentError(
            f"cu_seqlens: is {describe(cu_seqlens)}, expected int32 [documents + 1] — convert it with .to(torch.int32)"
        )
    if batch != 1 or queries != keys:
        raise KernelArgumentError(
            f"cu_seqlens: q has batch {batch} and length {queries}, k has length {keys}, expected B = 1 and equal "
            "lengths — concatenate the documents into one row"
        )
    if cu_seqlens.device != device:
        raise KernelArgumentError(f"cu_seqlens: is on {cu_seqlens.device}, q on {device} — move it")
    if cu_seqlens.device.type == "cpu" and tracing.has_values(cu_seqlens):
        borders = cu_seqlens.tolist()
        if len(borders) < 2 or borders[0] != 0 or borders[-1] != keys or borders != sorted(borders):
            raise KernelArgumentError(
                f"cu_seqlens: is {borders}, expected to rise from 0 to {keys}, the length of k — correct it"
            )


def check_prefix(prefix: Any, batch: int, queries: int, keys: int) -> None:
    """Check that a prefix is int64 [B], and that queries and keys have equal lengths."""
    if prefix is None:
        return
    if not is_tensor(prefix) or str(prefix.dtype) != "torch.int64" or tuple(prefix.shape) != (batch,):
        raise KernelArgumentError(f"prefix: is {describe(prefix)}, expected int64 [{batch}] — convert it")
    if queries != keys:
        raise KernelArgumentError(
            f"prefix: with {queries} queries and {keys} keys, expected equal lengths — use masked_out"
        )


def hidden(rows: slice, columns: slice, shift: int, *, causal: bool, window: int | None, device: Any) -> Any:
    """Return the bool mask [rows, columns] for ``causal`` and ``window``, True = masked. ``shift`` is K - Q."""
    import torch

    query = torch.arange(rows.start, rows.stop, device=device)[:, None] + shift
    key = torch.arange(columns.start, columns.stop, device=device)[None, :]
    too_late = key > query
    if window is not None:
        return too_late | (key <= query - window)
    return too_late if causal else torch.zeros_like(too_late)


_causal: dict[Any, tuple[Any, int, Any, bool]] = {}


def is_causal(masked_out: Any, queries: int, keys: int) -> bool:
    """Return whether a bool mask is exactly causal.

    Cached, because all layers of a step use the same tensor. In a backward pass, a recomputed layer gets a new tensor
    on the same memory. Elsewhere a new tensor is read again, because collectives write to memory without a new version.
    """
    import torch

    shape = masked_out.shape
    if shape[-2:] != (queries, keys) or masked_out.dtype != torch.bool:
        return False
    if not tracing.has_values(masked_out):
        return False  # its values cannot be read; applying it as a mask gives the same result
    storage, version = masked_out.untyped_storage(), None if masked_out.is_inference() else masked_out._version
    place = id(storage), masked_out.storage_offset(), shape, masked_out.stride()
    known = _causal.get(place)
    if known is not None and known[0]() is storage and known[1] == version:
        tensor, answer = known[2:]
        if tensor() is masked_out or torch._C._current_graph_task_id() != -1:
            return answer
    rows, columns = slice(0, queries), slice(0, keys)
    future = hidden(rows, columns, keys - queries, causal=True, window=None, device=masked_out.device)
    answer = bool((masked_out == future).all())
    if version is not None:  # a tensor created in inference_mode has no version counter
        of_storage = weakref.ref(storage, lambda _: _causal.pop(place, None))
        _causal[place] = of_storage, version, weakref.ref(masked_out), answer
    return answer


_prefixes: dict[tuple[int, int], tuple[Any, int, Any]] = {}


def hidden_by_prefix(prefix: Any, length: int, device: Any) -> Any:
    """Return ``prefix`` as masked_out, bool [B, 1, S, S]. Cached, because all layers of a pass get the same tensor."""
    version = None if prefix.is_inference() or not tracing.has_values(prefix) else prefix._version
    known = _prefixes.get((id(prefix), length))
    if known is not None and version is not None and known[0]() is prefix and known[1] == version:
        return known[2]
    whole = slice(0, length)
    later = hidden(whole, whole, 0, causal=True, window=None, device=device)
    mask = (later & (_places(length, device) >= prefix.to(device)[:, None, None]))[:, None]
    if version is not None:
        key = (id(prefix), length)
        _prefixes[key] = (weakref.ref(prefix, lambda _: _prefixes.pop(key, None)), version, mask)
    return mask


def _places(length: int, device: Any) -> Any:
    import torch

    return torch.arange(length, device=device)


def documents(cu_seqlens: Any, length: int) -> Any:
    """Return the index of the document that each of ``length`` packed positions belongs to, int64 [length]."""
    import torch

    positions = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.bucketize(positions, cu_seqlens[1:], right=True)


def _check_bool(name: str, mask: Any) -> None:
    if not is_tensor(mask) or str(mask.dtype) != "torch.bool":
        raise KernelArgumentError(
            f"{name}: is {describe(mask)}, expected a bool tensor — pass an additive mask as bias=, "
            "or convert a 0/1 mask with a comparison"
        )


def _check_fits(name: str, mask: Any, scores: Sequence[int], device: Any) -> None:
    shape, full = tuple(mask.shape), tuple(scores)
    if len(shape) > len(full) or any(
        mine not in (1, whole) for mine, whole in zip(reversed(shape), reversed(full), strict=False)
    ):
        raise KernelArgumentError(
            f"{name}: has shape {list(shape)}, expected a shape that broadcasts to the scores {list(full)} — reshape it"
        )
    if mask.device != device:
        raise KernelArgumentError(f"{name}: is on {mask.device}, the scores on {device} — move it")
