"""Checkpoint source: a checkpoint of any dialect, read as the canonical state through mapping rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ascend_adapt.checkpoint.canonical import Parameter, parameters
from ascend_adapt.config.model_config import Model
from ascend_adapt.errors import CheckpointError

Tensors = Sequence[torch.Tensor]
_BUFFERS = ("inv_freq", "attention.bias", "attn.bias", "masked_bias", "_extra_state")


def is_buffer(key: str) -> bool:
    """Return whether a key is a computed buffer that old releases saved, such as a mask or rotary frequencies."""
    return f".{key}".endswith(tuple(f".{name}" for name in _BUFFERS))


def unchanged(tensors: Tensors) -> Tensors:
    """Return the tensors unchanged."""
    return tensors


@dataclass(frozen=True)
class Rule:
    """Mapping rule between tensors of the canonical state and the dialect's tensors that hold the same values."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    inward: Callable[[Tensors], Tensors] = unchanged
    outward: Callable[[Tensors], Tensors] = unchanged


@dataclass(frozen=True)
class Given:
    """User-supplied facts about a checkpoint besides its path.

    ``config`` replaces the configuration stored with the checkpoint; ``assumed`` is the model if none is stored.
    ``master_weights``: read fp32 master weights from ZeRO shards.
    """

    config: Sequence[Path] = ()
    assumed: Model | None = None
    master_weights: bool = False


@dataclass(frozen=True)
class Source:
    """A checkpoint as the canonical state; tensors are read lazily.

    ``read`` returns the full, unsharded parameter of ``model`` in the dtype of the file. ``layout`` has the parallel
    sizes and files, which ``inspect`` prints besides the model.
    """

    dialect: str
    path: Path
    model: Model
    read: Callable[[str], torch.Tensor]
    dtype: torch.dtype
    iteration: int | None = None
    layout: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tokenizer: Path | None = None
    """Folder of the tokenizer files next to the checkpoint, or None."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the training run, as the code base saved them."""
    differing: Sequence[str] = ()
    """Parameters read so far whose values differed between ranks, and were averaged."""

    def parameters(self) -> list[Parameter]:
        """Return the parameters in model order."""
        return list(parameters(self.model))


class RuleReader:
    """Reads canonical parameters through rules; the tensors of the latest rule are cached for its other names.

    ``fetch`` returns a rule's tensors in the dialect.
    """

    def __init__(
        self, rules: Iterable[Rule], fetch: Callable[[Rule], Tensors], expected: Iterable[Parameter], where: Path
    ) -> None:
        self._by_name = {name: rule for rule in rules for name in rule.ours}
        self._fetch, self._where = fetch, where
        self._shapes = {one.name: one.shape for one in expected}
        self._kept: dict[str, torch.Tensor] = {}

    def __call__(self, name: str) -> torch.Tensor:
        """Return a parameter.

        Raises:
            CheckpointError: the parameter is missing, or has an unexpected shape.
        """
        if name not in self._kept:
            rule = self._by_name[name]
            self._kept = dict(zip(rule.ours, self._checked(rule), strict=True))
        return self._kept.pop(name)

    def _checked(self, rule: Rule) -> Tensors:
        raw = self._fetch(rule)
        try:
            tensors = rule.inward(raw)
        except RuntimeError as error:
            shapes = ", ".join(str(list(one.shape)) for one in raw)
            raise CheckpointError(self._wrong(rule.theirs, shapes, rule.ours)) from error
        for name, tensor in zip(rule.ours, tensors, strict=True):
            if tuple(tensor.shape) != self._shapes[name]:
                raise CheckpointError(self._wrong(rule.theirs, str(list(tensor.shape)), (name,)))
        return tensors

    def _wrong(self, theirs: Sequence[str], shapes: str, ours: Sequence[str]) -> str:
        expected = ", ".join(str(list(self._shapes[name])) for name in ours)
        return (
            f"{self._where}: {', '.join(theirs)} is {shapes}, expected {expected} from the configuration — correct the "
            "configuration, or pass the checkpoint's with --config"
        )


def refuse_leftover(names: Iterable[str], rules: Iterable[Rule], where: Path, also: Iterable[str] = ()) -> None:
    """Check that the rules use every tensor of a dialect; buffers are ignored.

    Raises:
        CheckpointError: tensors are missing or unexpected.
    """
    known = {key for rule in rules for key in rule.theirs}
    found = {name for name in names if not is_buffer(name)}
    missing, left = sorted(known - found), sorted(found - known - set(also))
    problems = [f"lacks {_some(missing)}"] if missing else []
    problems += [f"has unexpected {_some(left)}"] if left else []
    if problems:
        raise CheckpointError(
            f"{where}: {' and '.join(problems)}, expected exactly the parameters of the model that its configuration "
            "describes — correct the configuration, or pass the checkpoint's with --config"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
