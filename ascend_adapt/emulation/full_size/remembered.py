"""Cache of operator results at full size, keyed by the shapes of the arguments, because layers repeat.

Limits that depend on values, such as those of a compressed mask, are only checked when a shape is first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ascend_adapt.emulation import report


@dataclass(frozen=True)
class _Argument:
    """A result that is one of the arguments, stored as its index among the tensors of the call."""

    place: int


_results: dict[Any, tuple[Any, int]] = {}


def key_of(name: str, values: Iterable[Any]) -> Any:
    """Return the cache key of a call: the operator, and the shapes, dtypes, strides and numbers of its arguments."""
    return name, tuple(_part(value) for value in values)


def result_of(key: Any, values: Iterable[Any], create: Callable[[torch.Tensor], torch.Tensor]) -> tuple[bool, Any]:
    """Return whether the cache has this call, and its results; ``create`` makes a new tensor from a meta tensor."""
    found = _results.get(key)
    if found is None:
        return False, None
    results, flops = found
    report.operations(flops)
    given = list(tensors_in(values))

    def again(result: Any) -> Any:
        if isinstance(result, _Argument):
            return given[result.place]
        if isinstance(result, torch.Tensor):
            return create(result) if result.is_meta else result.clone()
        return result

    return True, _mapped(again, results)


def remember(key: Any, values: Iterable[Any], results: Any, flops: int, original_of: Callable[[Any], Any]) -> None:
    """Cache the meta results of a call; ``original_of`` returns the argument that is identical to a result, or None."""
    places = {id(tensor): place for place, tensor in enumerate(tensors_in(values))}

    def kept(result: Any) -> Any:
        original = original_of(result) if isinstance(result, torch.Tensor) else None
        return result if original is None else _Argument(places[id(original)])

    _results[key] = _mapped(kept, results), flops


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments, including those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _part(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.size()), torch.Tensor.stride(value), value.device.type
    if isinstance(value, (list, tuple)):
        return tuple(_part(one) for one in value)
    if isinstance(value, torch.Generator):
        return None
    return type(value), value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, one) for one in value)
    return change(value)
