"""Rewrite files of torch.save with their tensors on an NPU.

    save_on_npu.py FILE OLD LEGACY

The first is written as by today's torch_npu. The others are written as by torch_npu for torch 1.11, which pickled each
tensor as a call of its own function, with a storage of the NPU and the number of its format; the last one without a zip
archive, as before torch 1.6. Today's torch_npu rejects that for tensors on an NPU, so CPU tensors are labelled "npu:0".
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
        npu_format = torch_npu.get_npu_format(one.npu())
        return _rebuild_npu_tensor, (storage, 0, tuple(one.shape), one.stride(), False, {}, npu_format)


def changed(content: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested dicts with their tensors changed."""
    if isinstance(content, dict):
        return {name: changed(value, change) for name, value in content.items()}
    return change(content) if isinstance(content, torch.Tensor) else content


if __name__ == "__main__":
    file, old, legacy = sys.argv[1:]
    torch.save(changed(torch.load(file), torch.Tensor.npu), file)
    torch.save(changed(torch.load(old), lambda tensor: Old(tensor.npu())), old)
    content = changed(torch.load(legacy), Old)
    torch.serialization.register_package(0, lambda storage: "npu:0", lambda storage, location: None)
    torch.save(content, legacy, _use_new_zipfile_serialization=False)
