"""The folder that a run is saved in, and how a checkpoint gets there whole or not at all.

    SAVE/latest_checkpointed_iteration.txt      the number of the last whole checkpoint
    SAVE/iter_0000100/                          a checkpoint: parts of ranks, .metadata, progress.json
    SAVE/iter_0000100/SHA256SUMS                sums of all its files, as sha256sum -c reads them
    SAVE/.in-use                                held by the run that saves there (save_lock)
    SAVE/.saving-iter_0000200/                  one that is being written
    SAVE/.removing-iter_0000050/                one that is being removed

What begins with .saving or .removing is rubbish after a crash, and goes away with the next save. A checkpoint is
written aside, brought to the disk, renamed, and only then named the latest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.errors import ran_out, system_error

LATEST = "latest_checkpointed_iteration.txt"
PROGRESS = "progress.json"
SUMS = "SHA256SUMS"
SAVING, REMOVING = ".saving-", ".removing-"
_PIECE = 1 << 22


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one run; only those of this trainer are seen, and ever removed."""

    path: Path

    def of(self, iteration: int) -> Path:
        """Return where the checkpoint of an iteration is."""
        return self.path / f"iter_{iteration:07d}"

    def latest(self) -> str | None:
        """Return what is named the latest, or None where nothing is; other trainers write a file of the same name."""
        tracker = self.path / LATEST
        return tracker.read_text(encoding="utf-8", errors="replace").strip() if tracker.exists() else None

    def saved(self) -> list[int]:
        """Return the iterations of which there is a checkpoint, in order; their sums are not looked at."""
        found = (one for one in self.path.glob("iter_*") if one.name[5:].isdecimal() and (one / SUMS).exists())
        return sorted(int(one.name[5:]) for one in found)

    def begin(self, iteration: int) -> Path:
        """Return a new folder to write a checkpoint into, after what an earlier crash left is gone.

        Raises:
            ValueError: where it belongs is a checkpoint of another trainer.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.of(iteration)
        if target.exists() and not (target / PROGRESS).exists() and not (target / SUMS).exists():
            raise ValueError(f"{target.name} is there, and is not of this trainer")
        for left in (*self.path.glob(f"{SAVING}*"), *self.path.glob(f"{REMOVING}*")):
            shutil.rmtree(left)
        for left in self.path.glob(f".{LATEST}.*"):
            left.unlink()
        aside = self.aside(iteration)
        aside.mkdir()
        return aside

    def aside(self, iteration: int) -> Path:
        """Return the folder that a checkpoint is written into."""
        return self.path / f"{SAVING}{self.of(iteration).name}"

    def publish(self, iteration: int, progress: str, sums: Mapping[str, str], keep_last: int | None) -> None:
        """Make what was written aside the latest checkpoint, and remove older ones; ``sums`` are those of its files.

        Raises:
            ValueError: not all files are there.
        """
        aside, target = self.aside(iteration), self.of(iteration)
        missing = sorted(name for name in sums if not (aside / name).exists())
        if missing:
            raise ValueError(f"{missing[0]} is not in {aside}, which the rank that wrote it sees elsewhere")
        write_durably(aside / PROGRESS, progress)
        every = {**sums, PROGRESS: checksum(aside / PROGRESS)}
        write_durably(aside / SUMS, "".join(f"{every[name]}  {name}\n" for name in sorted(every)))
        if target.exists():
            self._remove(target)
        aside.rename(target)
        sync_folder(self.path)
        write_durably(self.path / LATEST, str(iteration))
        if keep_last is not None:
            # Later ones are of a future that was given up; none of them is what a run would take up.
            for old in [one for one in self.saved() if one < iteration][: 1 - keep_last or None]:
                self._remove(self.of(old))

    def abandon(self, iteration: int) -> None:
        """Remove what was written aside, if it can be removed."""
        shutil.rmtree(self.aside(iteration), ignore_errors=True)

    def _remove(self, folder: Path) -> None:
        aside = folder.with_name(REMOVING + folder.name)
        folder.rename(aside)
        shutil.rmtree(aside)


def recorded_sums(folder: Path) -> dict[str, str]:
    """Return the sums of a checkpoint's files by name.

    Raises:
        ValueError: they are not there, or do not name just the files that are.
    """
    if not folder.exists():
        raise ValueError("it is not there")
    if not (folder / SUMS).exists():
        raise ValueError(f"it has no {SUMS}")
    words = [line.split("  ", 1) for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()]
    if not all(len(pair) == 2 for pair in words):
        raise ValueError(f"its {SUMS} cannot be read")
    sums = {name: value for value, name in words}
    there = {one.name for one in folder.iterdir()} - {SUMS}
    for name in sorted(there ^ set(sums)):
        raise ValueError(f"{name} is missing" if name in sums else f"{name} has no sum")
    return sums


def damage(folder: Path, sums: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return in words what is wrong with some of a checkpoint's files, or None.

    Raises:
        OSError: this process lacks a resource; the files may be valid.
    """
    for name in names:
        try:
            if checksum(folder / name) != sums[name]:
                return f"{name} is not what was written"
        except OSError as error:
            if ran_out(error):
                raise OSError(error.errno, system_error(error), str(folder / name)) from error
            return f"{name}: {error.strerror}"
    return None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_durably(path: Path, text: str) -> None:
    """Write a file whole or not at all, and onto the disk."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
