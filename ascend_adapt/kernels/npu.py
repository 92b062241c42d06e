"""Operators of torch_npu, called by name after the installed schema was compared with the expected schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_adapt.kernels import schema
from ascend_adapt.npu_limits.limit import FLOATS


class Operator:
    """One operator with its schema in torch_npu 2.13.0. ``uses`` are the arguments that our calls pass."""

    def __init__(self, written_for: str, uses: Sequence[str]) -> None:
        self.schema, self.uses = written_for, tuple(uses)
        self.name, _, overload = written_for.partition("(")[0].partition(".")
        self.overload = overload or "default"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the operator. Differentiating its gradient raises an error, which torch_npu would silently ignore."""
        import torch

        from ascend_adapt.kernels.first_order import refuse_second_order

        results = getattr(getattr(torch.ops.npu, self.name), self.overload)(*args, **named)
        refuse_second_order(results)
        return results

    def difference(self) -> str:
        """Return "" if the installed operator accepts our calls, else the difference."""
        return schema.gate(self.schema, self.uses)


def dtype_reason(*tensors: Any) -> str:
    """Return "" if all tensors are fp16, all are bf16 or all are fp32, as most operators require, else the reason."""
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor is not None]
    if len(set(dtypes)) > 1:
        return f"its tensors are {', '.join(dtypes)}, not of one dtype"
    if dtypes[0] not in FLOATS:
        return f"it does not take {dtypes[0]}"
    return ""
