"""Operators of torch_npu, called by name once their installed schema was compared with the one we wrote for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

WRITTEN_FOR = "torch_npu 2.13.0"


class Operator:
    """One operator; ``uses`` are the arguments that our calls give, which other releases must have alike."""

    def __init__(self, schema: str, uses: Sequence[str]) -> None:
        self.schema, self.uses = schema, tuple(uses)
        self.name, _, overload = schema.partition("(")[0].partition(".")
        self.overload = overload or "default"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return what the operator returns."""
        return self._installed()(*args, **named)

    def difference(self) -> str:
        """Return "" if the installed operator can be called as ours is, else in what it differs."""
        try:
            installed = str(self._installed()._schema)
        except AttributeError:
            return f"the installed torch_npu has no operator {self.name}"
        return difference(self.schema, installed.removeprefix("npu::"), self.uses)

    def _installed(self) -> Any:
        import torch

        return getattr(getattr(torch.ops.npu, self.name), self.overload)


@functools.cache
def difference(written_for: str, installed: str, uses: tuple[str, ...]) -> str:
    """Return "" if a call that gives ``uses`` means the same under both schemas, else what differs.

    What a release adds with a default, or lacks and is not used, changes nothing.
    """
    import torch

    ours, theirs = torch._C.parse_schema(written_for), torch._C.parse_schema(installed)
    known = {argument.name: argument for argument in theirs.arguments}
    position = {argument.name: place for place, argument in enumerate(theirs.arguments)}
    for place, argument in enumerate(ours.arguments):
        other = known.pop(argument.name, None)
        if argument.name not in uses:
            if other is not None and (other.has_default_value(), other.default_value) != (
                argument.has_default_value(),
                argument.default_value,
            ):
                return (
                    f"{ours.name}: {argument.name} is {other.default_value!r} by default, "
                    f"{argument.default_value!r} in {WRITTEN_FOR}"
                )
            continue
        if other is None:
            return f"{ours.name}: has no argument {argument.name}"
        if str(other.type) != str(argument.type):
            return f"{ours.name}: {argument.name} is {other.type}, {argument.type} in {WRITTEN_FOR}"
        if not argument.kwarg_only and (other.kwarg_only or position[argument.name] != place):
            return f"{ours.name}: {argument.name} is no longer argument {place + 1}"
    for name, other in known.items():
        if not other.has_default_value():
            return f"{ours.name}: asks for {name}, which {WRITTEN_FOR} does not know"
    if len(ours.returns) != len(theirs.returns):
        return f"{ours.name}: returns {len(theirs.returns)} values, {len(ours.returns)} in {WRITTEN_FOR}"
    return ""


def dtype_reason(*tensors: Any) -> str:
    """Return "" if all are fp16, bf16 or fp32 and of one dtype, as most operators ask, else why not."""
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor is not None]
    if len(set(dtypes)) > 1:
        return f"its tensors are {', '.join(dtypes)}, not of one dtype"
    if dtypes[0] not in ("float16", "bfloat16", "float32"):
        return f"it takes no {dtypes[0]}"
    return ""
