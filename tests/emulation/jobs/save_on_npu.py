"""Rewrite files of torch.save with their tensors on an NPU.

    save_on_npu.py FILE OLD LEGACY

The first is written as by today's torch_npu. The others are written as by torch_npu for torch 1.11, which pickled each
tensor as a call of its own function, with a storage of the NPU and the number of its format; the last one without a zip
archive, as before torch 1.6.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from torch_npu.utils.storage import _rebuild_npu_tensor


class Old:
    """Pickled as a tensor of the old torch_npu."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that rebuilds the tensor."""
        storage, one = self.tensor._typed_storage(), self.tensor
        npu_format = torch_npu.get_npu_format(one)
        return _rebuild_npu_tensor, (storage, 0, tuple(one.shape), one.stride(), False, {}, npu_format)


def moved(content: Any, *, old: bool) -> Any:
    """Return nested dicts with their tensors on the NPU."""
    if isinstance(content, dict):
        return {name: moved(value, old=old) for name, value in content.items()}
    if not isinstance(content, torch.Tensor):
        return content
    return Old(content.npu()) if old else content.npu()


if __name__ == "__main__":
    file, old, legacy = sys.argv[1:]
    torch.save(moved(torch.load(file), old=False), file)
    torch.save(moved(torch.load(old), old=True), old)
    torch.save(moved(torch.load(legacy), old=True), legacy, _use_new_zipfile_serialization=False)
