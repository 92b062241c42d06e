"""The files of a recording: one folder per rank, with the calls as JSON lines and the digests as arrays.

    DIR/rank-0/run.json     facts about the run: versions, device, seed, tensor-parallel rank
    DIR/rank-0/steps.jsonl  one object per module, call, gradient, optimizer and step, in the order of the run
    DIR/rank-0/step-1.npy   float32 [tensors, values.WIDTH]: "row" in steps.jsonl is the index of a tensor's digest
    DIR/rank-0/inputs/      inputs that --record-inputs kept

docs/alignment.md describes each kind of object.
"""

from __future__ import annotations

import json
import os
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt import regular_files
from ascend_adapt.alignment import record_shapes
from ascend_adapt.alignment.values import WIDTH
from ascend_adapt.errors import AlignmentError, one_line
from ascend_adapt.whole_numbers import whole_number

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
RUN, STEPS = "run.json", "steps.jsonl"
_MOST_FAULTS = 5


def rank_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of a recording by rank."""
    numbered = {path: whole_number(path.name[5:]) for path in folder.glob("rank-*")}
    found = {number: path for path, number in numbered.items() if number is not None}
    return dict(sorted(found.items()))


class Writer:
    """Writes the recording of one rank. ``write`` returns when the step is on disk.

    Raises:
        AlignmentError: another running process records the same rank into this folder.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        _refuse_running(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("step-*.npy"), folder / STEPS, folder / RUN):  # a restarted rank begins again
            old.unlink(missing_ok=True)
        (folder / RUN).write_text(json.dumps({"format": FORMAT, **facts}, indent=1) + "\n")

    def write(self, step: int, lines: list[dict[str, Any]], digests: Any) -> None:
        """Append one step: its objects, and its digests as float32 [tensors, WIDTH]."""
        import numpy as np

        np.save(self.folder / f"step-{step}.npy", digests)
        with (self.folder / STEPS).open("a") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


# What numpy raises for a damaged header, or for one whose array does not fit into memory.
_DAMAGED_ARRAY = (
    *(OSError, EOFError, MemoryError, OverflowError),
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError),
)


@dataclass
class StepRecord:
    """The record of one step by one rank."""

    number: int
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    last_row: int = -1

    @cached_property
    def digests(self) -> np.ndarray:
        """The digests of this step, float32 [tensors, WIDTH]."""
        import numpy as np

        path = self.path / f"step-{self.number}.npy"
        try:
            with regular_files.open_binary(path) as file:  # np.load would also open a zip archive
                loaded: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            if loaded.dtype != np.float32 or loaded.shape[1:] != (WIDTH,) or len(loaded) <= self.last_row:
                raise ValueError(f"{loaded.dtype} {list(loaded.shape)} with rows up to {self.last_row} in {STEPS}")
        except _DAMAGED_ARRAY as error:
            raise AlignmentError(
                f"{path}: {one_line(error)}, expected the digests of step {self.number} — record again"
            ) from error
        return loaded


@dataclass
class Recording:
    """The recording of one rank."""

    path: Path
    facts: dict[str, Any]
    steps: dict[int, StepRecord] = field(default_factory=dict)
    modules: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)

    @property
    def tensor_ranks(self) -> tuple[int, int]:
        """(rank, size) of the tensor-parallel group."""
        rank, size = self.facts.get("tensor_parallel") or (0, 1)
        return rank, size


def read(folder: Path) -> dict[int, Recording]:
    """Read the recordings of all ranks.

    Raises:
        AlignmentError: the folder has no recording, or a file is damaged.
    """
    folders = rank_folders(folder)
    if not folders:
        raise AlignmentError(
            f"{folder}: no folder rank-N, expected a recording — create one with ascend-run --record {folder} train.py"
        )
    return {rank: _read_rank(path) for rank, path in folders.items()}


def _read_rank(path: Path) -> Recording:
    file = path / RUN
    try:
        facts = json.loads(regular_files.read_text(file))
        faults = list(record_shapes.RUN(facts, ""))
        if not faults and facts["format"] != FORMAT:
            faults = [f"format {facts['format']}"]
        found = Recording(path, {} if faults else facts)
        if not faults:
            file = path / STEPS
            faults = list(_read_lines(file, found))
    except (OSError, ValueError, RecursionError) as error:
        faults = [one_line(error)]
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        raise AlignmentError(
            f"{file}: {'; '.join(faults[:_MOST_FAULTS])}{more}, expected a recording of format {FORMAT} — "
            "record again with this version"
        )
    return found


def _read_lines(path: Path, found: Recording) -> Iterator[str]:
    """Add the lines of a file to a recording, and yield the faults of those that are not valid."""
    if not path.exists():  # no step was recorded
        return
    with regular_files.open_text(path) as file:
        for number, text in enumerate(file, 1):
            if not text.endswith("\n"):  # the last line may be truncated, if the process was killed
                continue
            try:
                line = json.loads(text)
                faults = list(record_shapes.line(line, ""))
            except (ValueError, RecursionError) as error:
                faults = [one_line(error)]
            yield from (f"line {number}: {fault}" for fault in faults)
            if not faults:
                _KINDS[line["kind"]](found, line)


def _step(found: Recording, line: dict[str, Any]) -> StepRecord:
    step = found.steps.setdefault(line["step"], StepRecord(line["step"], found.path))
    step.last_row = max(step.last_row, record_shapes.last_row(line))
    return step


_KINDS: dict[str, Any] = {
    "module": lambda found, line: found.modules.update({(line["root"], line["name"]): line}),
    "step": lambda found, line: _step(found, line).facts.update(line),
    "call": lambda found, line: _step(found, line).calls.append(line),
    "weight": lambda found, line: _step(found, line).weights.append(line),
    "gradient": lambda found, line: _step(found, line).gradients.append(line),
    "optimizer": lambda found, line: _step(found, line).optimizers.append(line),
}


def _refuse_running(folder: Path) -> None:
    try:
        pid = json.loads(regular_files.read_text(folder / RUN)).get("pid")
    except (OSError, ValueError, AttributeError, RecursionError):
        return
    if pid not in (None, os.getpid()) and os.path.exists(f"/proc/{pid}"):
        raise AlignmentError(
            f"{folder}: process {pid} records there, expected one process per rank — record only one of them"
        )


def refuse_existing(folder: Path) -> None:
    """Check that a folder has no recording yet.

    Raises:
        AlignmentError: the folder has a recording, or is a file.
    """
    try:
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:  # such as a name that is too long
        raise AlignmentError(f"{folder}: {error.strerror}, expected a new folder — choose another") from error
    if is_file or rank_folders(folder):
        kind = "a recording is already there" if folder.is_dir() else "is a file"
        raise AlignmentError(f"{folder}: {kind}, expected a new folder — choose another, or remove it")
