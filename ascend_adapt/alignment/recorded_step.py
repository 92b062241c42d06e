"""A step that is being recorded: its lines, and the digests of its tensors in the order of time."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.alignment.digest_table import DigestTable
from ascend_adapt.alignment.module_names import Name
from ascend_adapt.alignment.recording import Writer
from ascend_adapt.alignment.shards import Shard


@dataclass
class RecordedTensor:
    """Rows of one version of a tensor, and of its gradient, in the step's array; None before the gradient exists."""

    row: int
    dtype: str
    shape: list[int]
    shard: Shard | None = None
    gradient: int | None = None
    has_gradient: bool = False
    gradient_shard: Shard | None = None

    def entry(self) -> dict[str, Any]:
        """Return the tensor's part of its entry in a line, without its gradient."""
        entry: dict[str, Any] = {"row": self.row, "dtype": self.dtype, "shape": self.shape}
        return entry | ({"shard": _as_list(self.shard)} if self.shard is not None else {})

    def gradient_entry(self) -> dict[str, Any]:
        """Return the gradient's part of the entry, at the end of the step."""
        entry: dict[str, Any] = {"gradient": self.gradient}
        return entry | ({"gradient_shard": _as_list(self.gradient_shard)} if self.gradient_shard is not None else {})


@dataclass
class RecordedStep:
    """The data recorded during one step. Rows are numbered in the order of time."""

    number: int
    folder: Path
    is_open: bool = True
    lines: list[dict[str, Any]] = field(default_factory=list)
    call_numbers: Iterator[int] = field(default_factory=itertools.count)
    calls: Counter[tuple[Name, bool]] = field(default_factory=Counter)
    backwards: Counter[str] = field(default_factory=Counter)
    hooked: dict[int, Any] = field(default_factory=dict)
    """The hooks on parameters, by the parameter's id."""
    _digests: DigestTable = field(default_factory=DigestTable)
    _known: dict[int, tuple[Any, int, RecordedTensor]] = field(default_factory=dict)
    _awaited: list[tuple[dict[str, Any], RecordedTensor]] = field(default_factory=list)

    def add(self, kind: str, **line: Any) -> None:
        """Add a line to the record of this step."""
        self.lines.append({"kind": kind, "step": self.number, **line})

    def known(self, tensor: torch.Tensor, shard: Shard | None) -> RecordedTensor | None:
        """Return the record of this version of a tensor, or None if it was not yet digested as this shard.

        A ``shard`` of None matches any, because a tensor's producer may not know the shard that its consumer knows.
        """
        seen = self._known.get(id(tensor))
        if seen is None or seen[0]() is not tensor or seen[1] != _version(tensor):
            return None
        return seen[2] if shard is None or seen[2].shard == shard else None

    def record(self, tensor: torch.Tensor, shard: Shard | None) -> RecordedTensor:
        """Digest a tensor, and remember this version of it."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        recorded = RecordedTensor(self.row_of(tensor, shard), dtype, list(tensor.shape), shard)
        self._known[id(tensor)] = (weakref.ref(tensor), _version(tensor), recorded)
        return recorded

    def entry(self, tensor: torch.Tensor, shard: Shard | None, once: bool = False) -> dict[str, Any]:
        """Return the entry of a tensor without its gradient.

        With ``once``, each version is digested once. Optimizers and DeepSpeed change tensors without a new version.
        """
        return ((self.known(tensor, shard) if once else None) or self.record(tensor, shard)).entry()

    def await_gradient(self, entry: dict[str, Any], recorded: RecordedTensor) -> None:
        """Add the tensor's gradient to its entry when the step is over."""
        self._awaited.append((entry, recorded))

    def row_of(self, tensor: torch.Tensor, shard: Shard | None) -> int:
        """Digest a tensor and return the row of its digest."""
        local: Any = getattr(tensor, "to_local", None)
        with torch.no_grad():
            here = local() if local is not None else tensor
            if hasattr(here, "wait"):  # an asynchronous collective's result
                here = here.wait()
        return self._digests.add(here, shard)

    def write(self, writer: Writer, is_complete: bool) -> None:
        """End the step and write its record.

        Raises:
            OSError: the step cannot be written.
        """
        self.is_open = False
        for hook in self.hooked.values():
            hook.remove()
        for entry, recorded in self._awaited:
            entry |= recorded.gradient_entry()
        self.add("step", complete=is_complete)
        writer.write(self.number, self.lines, self._digests.array())


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _as_list(shard: Shard) -> list[int | None]:
    return [shard.axis, shard.rank, shard.size]
