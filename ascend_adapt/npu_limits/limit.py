"""A documented limit of an operator of torch_npu: what a call must satisfy, and its source."""

from __future__ import annotations

from dataclasses import dataclass

OP_PLUGIN = "op-plugin@517f2e7"
"""The commit of github.com/Ascend/op-plugin whose documents (docs/zh/custom_APIs/torch_npu) and checks were read."""
DOCSTRINGS = "torch_npu 2.13.0 _op_plugin_docs.py"

FLOATS = ("float16", "bfloat16", "float32")
"""The dtypes that most operators take."""


@dataclass(frozen=True)
class Limit:
    """One limit of one family of operators."""

    operators: str
    """The operators that have it, as the documentation lists them: ``npu_swiglu``."""
    text: str
    """The condition that a call must satisfy, as errors and reasons word it: ``input is contiguous``."""
    source: str
    """Where it is documented or checked."""
    silent: bool = False
    """Whether a real NPU returns a wrong result without an error, instead of rejecting the call."""

    def unmet(self, kept: bool, observed: str) -> str:
        """Return "" if a call is within the limit, else what was observed and the limit."""
        return "" if kept else f"{observed}, expected: {self.text}"

    def require(self, kept: bool, observed: str) -> None:
        """Raise if a call exceeds the limit.

        Raises:
            LimitNotKept: it does.
        """
        if not kept:
            raise LimitNotKept(self, observed)


class LimitNotKept(Exception):
    """A call that exceeds a limit; the emulation turns it into OperatorLimit."""

    def __init__(self, limit: Limit, observed: str):
        super().__init__(limit.unmet(False, observed))
        self.limit = limit
        self.observed = observed


def document(page: str) -> str:
    """Return the source of a limit that a page of op-plugin's documents states."""
    return f"{OP_PLUGIN} docs {page}"


def check(place: str) -> str:
    """Return the source of a limit that op-plugin's host code checks, without its folder ``op_plugin/ops``."""
    return f"{OP_PLUGIN} {place}"


def closed(sizes: range) -> str:
    """Return the first and last of allowed sizes as a closed interval: ``[1, 768]``."""
    return f"[{sizes[0]}, {sizes[-1]}]"
