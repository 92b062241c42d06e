"""Operators of torch_npu, called by name once their installed schema was compared with the one we wrote for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_adapt.kernels import schema


class Operator:
    """One operator, in the schema of torch_npu 2.13.0; ``uses`` are the arguments that our calls give."""

    def __init__(self, written_for: str, uses: Sequence[str]) -> None:
        self.schema, self.uses = written_for, tuple(uses)
        self.name, _, overload = written_for.partition("(")[0].partition(".")
        self.overload = overload or "default"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the operator returns."""
        import torch

        return getattr(getattr(torch.ops.npu, self.name), self.overload)(*args, **named)

    def difference(self) -> str:
        """Return "" if the installed operator can be called as ours is, else in what it differs."""
        return schema.gate(self.schema, self.uses)


def dtype_reason(*tensors: Any) -> str:
    """Return "" if all are fp16, bf16 or fp32 and of one dtype, as most operators ask, else why not."""
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor is not None]
    if len(set(dtypes)) > 1:
        return f"its tensors are {', '.join(dtypes)}, not of one dtype"
    if dtypes[0] not in ("float16", "bfloat16", "float32"):
        return f"it takes no {dtypes[0]}"
    return ""
