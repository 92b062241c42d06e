"""Masks made by tril or triu from a tensor filled with one number, such as torch.tril(torch.ones(...)); ranks only.

The number is noted, and only written to memory when tril or triu reads it: gradients and optimizer states also begin
as zeros, and writing all of them would take this machine's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ascend_adapt.emulation.full_size import values

CUT = ("tril", "triu", "tril_", "triu_")
"""Operators that make a mask."""
# Operators that fill their result with one number: the number, or the position of the argument that is the number.
_NUMBER = {"zero_": 0, "zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
_PLACE = {"fill_": 1, "full": 1, "full_like": 1}


def noting(base: str, run: Callable[..., Any], memory: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return the kernel of an operator; it also notes the number that fills its result, or that its result is a mask.

    Args:
        base: the operator's name without its overload.
        run: the kernel.
        memory: returns a host tensor on the memory of a device tensor.
    """

    def fill(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        note_number(base, args, result)
        return result

    def cut(*args: Any, **kwargs: Any) -> Any:
        is_mask = write(args[0], memory)
        result = run(*args, **kwargs)
        values.note_mask(result, is_mask)
        return result

    return cut if base in CUT else fill if base in _PLACE or base in _NUMBER else run


def note_number(base: str, args: Any, result: torch.Tensor) -> None:
    """Note the number that fills the result of a call, if the operator fills its result with one."""
    number = args[_PLACE[base]] if base in _PLACE else _NUMBER.get(base)
    storage = result.untyped_storage()
    if isinstance(number, (int, float)) and result.numel() * result.element_size() == storage.nbytes():
        storage.number_at_full_size = number


def forget(tensors: Iterable[torch.Tensor]) -> None:
    """Note that the values of tensors are unknown, because a call that was not computed wrote to them."""
    for tensor in tensors:
        tensor.untyped_storage().number_at_full_size = None
        values.note_mask(tensor, False)


def forget_numbers(tensors: Iterable[torch.Tensor]) -> None:
    """Note that a call wrote to parts of tensors, so that one number no longer fills them."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if getattr(storage, "number_at_full_size", None) is not None and not values.is_mask(storage):
            storage.number_at_full_size = None


def write(tensor: torch.Tensor, memory: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Write the number noted for a tensor to its memory, if it can be a mask; return whether it holds values."""
    storage = tensor.untyped_storage()
    number = getattr(storage, "number_at_full_size", None)
    if number is not None and storage.nbytes() <= values.MASK_BYTES and not values.hold(tensor):
        with values.computing:
            memory(tensor).fill_(number)
        values.note_mask(tensor, True)
    return values.hold(tensor)
