"""Tensors that one number fills, such as torch.ones: the number is noted, and written when a mask is cut from them.

Gradients and optimizer states also begin as zeros: writing all of them would need this machine's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ascend_adapt.emulation.full_size import values

_CUT = ("tril", "triu", "tril_", "triu_")
# Operators whose result one number fills: the number, or the place of the argument that is the number.
_NUMBER = {"zero_": 0, "zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
_PLACE = {"fill_": 1, "full": 1, "full_like": 1}


def note(base: str, args: Any, result: torch.Tensor) -> None:
    """Note the number that fills the result of a call, if ``base`` is an operator that fills."""
    number = args[_PLACE[base]] if base in _PLACE else _NUMBER.get(base)
    if number is not None and values.is_all_of_storage(result):
        result.untyped_storage().filled_with_at_full_size = number


def noting(base: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel ``run`` of an operator; if the operator fills, the kernel also notes the number."""

    def fill(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        note(base, args, result)
        return result

    return fill if base in _PLACE or base in _NUMBER else run


def forget(tensors: Iterable[torch.Tensor]) -> None:
    """Note that the values of tensors are unknown, because a call wrote to them that was not computed."""
    for tensor in tensors:
        tensor.untyped_storage().filled_with_at_full_size = None
        values.note_computed(tensor, False)


def write(base: str, args: Any, memory: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Write the number to the ``memory`` of a tensor from which a call cuts a mask; return whether this was done."""
    if base not in _CUT or values.hold(args[0]):
        return False
    storage = args[0].untyped_storage()
    number = getattr(storage, "filled_with_at_full_size", None)
    if number is None or storage.nbytes() > values.COMPUTED_BYTES:
        return False
    with values.computing:
        memory(args[0]).fill_(number)
    values.note_computed(args[0])
    return True
