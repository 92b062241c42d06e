"""Operators at full size: decides whether a call is computed; if not, determines the result shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.emulation.full_size import values

# Operators whose results may be larger than their arguments.
_ENLARGING = ("repeat", "repeat_interleave", "one_hot", "arange", "range", "linspace", "logspace", "eye", "randperm")
# In-place operators on lists of tensors, which have no result and no shapes for torch to check.
_ON_LISTS = ("_foreach_", "_fused_", "_amp_")


def is_computed(operator: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Return whether a call is computed, which requires that all of its tensors and results hold values."""
    if not (values.all_hold(args) and values.all_hold(kwargs.values())):
        return False
    base = operator.name().partition("::")[2].partition(".")[0]
    if base not in _ENLARGING and any(isinstance(one, (torch.Tensor, list)) for one in args) and _has_tensor(args):
        return True
    results = run(*_on_meta(args), **{key: _on_meta_value(value) for key, value in kwargs.items()})
    return values.all_hold(results if isinstance(results, (list, tuple)) else [results])


def of(operator: Any, run: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], written: list[Any]) -> Any:
    """Return the results of a call: meta tensors, or the arguments to which the call writes.

    ``args`` are meta tensors, except for tensors that a real call also has on the host.
    """
    base = operator.name().partition("::")[2].partition(".")[0]
    if base.startswith(_ON_LISTS) and base.endswith("_"):
        return written[0] if operator._schema.returns else None
    special = _SPECIAL.get(base)
    return (special or run)(*args, **kwargs)


def check_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Check the shapes of a copy.

    Raises:
        RuntimeError: the source does not broadcast to the target.
    """
    if target.shape != source.shape:
        torch.empty(target.shape, device="meta").copy_(torch.empty(source.shape, device="meta"))


def _nonzero(self: torch.Tensor) -> torch.Tensor:
    """Return the indices of nonzero elements, as if all elements were nonzero."""
    return torch.empty((self.numel(), self.dim()), dtype=torch.int64, device="meta")


def _masked_select(self: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the elements that the mask selects, or all elements if the values of the mask are unknown."""
    known = values.of(mask)
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    count = int(known.expand(shape).sum()) if known is not None else shape.numel()
    return self.new_empty(count)


def _index(self: torch.Tensor, indices: list[Any], *rest: Any, **named: Any) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(self, _without_masks(indices))


def _index_put_(self: torch.Tensor, indices: list[Any], put: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    return self


def _without_masks(indices: list[Any]) -> list[Any]:
    """Return indices with each boolean mask replaced by meta indices, as many as the mask selects."""
    found: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            known = values.of(index)
            count = int(known.sum()) if known is not None else index.numel()
            found.extend(torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.dim()))
        else:
            found.append(index)
    return found


def _local_scalar_dense(self: torch.Tensor) -> float | bool:
    """Return a stand-in for one element of a large tensor."""
    return values.stand_in("aten::_local_scalar_dense", self.dtype)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "_local_scalar_dense": _local_scalar_dense,
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "_unsafe_index": _index,
    "index_put_": _index_put_,
    "_index_put_impl_": _index_put_,
}


def _has_tensor(args: Any) -> bool:
    return any(isinstance(one, torch.Tensor) or (isinstance(one, (list, tuple)) and _has_tensor(one)) for one in args)


def _on_meta(args: Any) -> list[Any]:
    return [_on_meta_value(one) for one in args]


def _on_meta_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return values.as_meta(value, None)
    if isinstance(value, (list, tuple)):
        return _on_meta(value)
    return torch.device("meta") if isinstance(value, torch.device) else value
