"""The documented limits of torch_npu's operators, as values: what the rehearsal enforces, and where it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

OP_PLUGIN = "op-plugin@517f2e7"
"""The commit of github.com/Ascend/op-plugin whose documents (docs/zh/custom_APIs/torch_npu) and checks were read."""
DOCSTRINGS = "torch_npu 2.13.0 _op_plugin_docs.py"


@dataclass(frozen=True)
class Limit:
    """One documented limit of one family of operators."""

    operators: str
    """Whose limit it is, for the table: ``npu_swiglu``."""
    text: str
    """What a call must keep, in the words of the report: ``input is contiguous``."""
    source: str
    """Where it is documented or checked."""
    silent: bool = False
    """Whether a real NPU computes something else without an error, rather than refusing."""

    def require(self, kept: bool, detail: str) -> None:
        """Raise if a call does not keep the limit; ``detail`` says what was observed.

        Raises:
            LimitNotKept: it is not kept.
        """
        if not kept:
            raise LimitNotKept(self, detail)


class LimitNotKept(Exception):
    """A kernel found a call that does not keep a limit; the boxed kernel turns it into OperatorLimit."""

    def __init__(self, limit: Limit, detail: str):
        super().__init__(f"{detail}, expected: {limit.text}")
        self.limit = limit
        self.detail = detail


def document(page: str) -> str:
    """Return the source of a limit that a page of op-plugin's documents states."""
    return f"{OP_PLUGIN} docs {page}"


def check(place: str) -> str:
    """Return the source of a limit that op-plugin's host code checks (``op_plugin/ops`` is left out)."""
    return f"{OP_PLUGIN} {place}"


def limits_of(module: object) -> Iterable[Limit]:
    """Yield the limits that a module declares, in its order."""
    return (value for value in vars(module).values() if isinstance(value, Limit))


def shape(tensor: torch.Tensor) -> str:
    """Return a shape as in messages: ``[2, 3]``."""
    return str(list(tensor.shape))


def dtype(tensor: torch.Tensor) -> str:
    """Return a dtype as in messages: ``float16``."""
    return str(tensor.dtype).removeprefix("torch.")


FLOATS = (torch.float16, torch.bfloat16, torch.float32)
