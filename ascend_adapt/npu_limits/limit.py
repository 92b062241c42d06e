"""A documented limit of a torch_npu operator: the condition that calls must satisfy, and its source."""

from __future__ import annotations

from dataclasses import dataclass

OP_PLUGIN = "op-plugin@517f2e7"
"""The cited commit of github.com/Ascend/op-plugin: its documents (docs/zh/custom_APIs/torch_npu) and checks."""
DOCSTRINGS = "torch_npu 2.13.0 _op_plugin_docs.py"

FLOATS = ("float16", "bfloat16", "float32")
"""The dtypes that most operators take."""


@dataclass(frozen=True)
class Limit:
    """One limit of a family of operators."""

    operators: str
    """The operators that have this limit, as the documentation lists them, such as ``npu_swiglu``."""
    text: str
    """The condition that a call must satisfy, in the words of errors and reasons, such as ``input is contiguous``."""
    source: str
    """Where the limit is documented or checked."""
    silent: bool = False
    """Whether a real NPU returns a wrong result without an error, instead of rejecting the call."""

    def unmet(self, kept: bool, observed: str) -> str:
        """Return "" if the limit is ``kept``, else the observed values and the limit."""
        return "" if kept else f"{observed}, expected: {self.text}"

    def require(self, kept: bool, observed: str) -> None:
        """Check that a call is within the limit.

        Raises:
            LimitNotKept: the call exceeds the limit.
        """
        if not kept:
            raise LimitNotKept(self, observed)


class LimitNotKept(Exception):
    """A call exceeds a limit. The emulation converts this error into OperatorLimit."""

    def __init__(self, limit: Limit, observed: str):
        super().__init__(limit.unmet(False, observed))
        self.limit = limit
        self.observed = observed


def document(page: str) -> str:
    """Return the source of a limit that a page of op-plugin's documentation states."""
    return f"{OP_PLUGIN} docs {page}"


def check(place: str) -> str:
    """Return the source of a limit that op-plugin's host code checks. ``place`` is a path in ``op_plugin/ops``."""
    return f"{OP_PLUGIN} {place}"


def closed(sizes: range) -> str:
    """Return allowed sizes as a closed interval, such as ``[1, 768]``."""
    return f"[{sizes[0]}, {sizes[-1]}]"
