"""Checkpoint folder of a run; a checkpoint is either complete or absent.

    SAVE/latest_checkpointed_iteration.txt      the iteration of the latest checkpoint
    SAVE/iter_0000100/                          a checkpoint: shards of ranks, .metadata, progress.json
    SAVE/iter_0000100/SHA256SUMS                SHA-256 of all its files, readable by sha256sum -c
    SAVE/.in-use                                lock of the run that saves into SAVE (save_lock)
    SAVE/.saving-iter_0000200/                  a checkpoint that is being written
    SAVE/.removing-iter_0000050/                a checkpoint that is being removed

After a crash, the next save removes folders that begin with .saving or .removing. A checkpoint is written to its
.saving folder, synced to the disk, renamed, and only then recorded in the tracker.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import ran_out, system_error
from ascend_adapt.whole_numbers import whole_number

LATEST = "latest_checkpointed_iteration.txt"
PROGRESS = "progress.json"
SUMS = "SHA256SUMS"
SAVING, REMOVING = ".saving-", ".removing-"
_PIECE = 1 << 22


@dataclass(frozen=True)
class CheckpointFolder:
    """The native checkpoints of one run; files of other trainers are never removed."""

    path: Path

    def of(self, iteration: int) -> Path:
        """Return the folder of an iteration's checkpoint."""
        return self.path / f"iter_{iteration:07d}"

    def latest(self) -> str | None:
        """Return the content of the tracker file, or None if there is none. Other trainers use the same file name."""
        tracker = self.path / LATEST
        return regular_files.read_text(tracker, errors="replace").strip() if tracker.exists() else None

    def saved(self) -> list[int]:
        """Return the iterations of all native checkpoints in ascending order, without checking their files."""
        found = (whole_number(one.name[5:]) for one in self.path.glob("iter_*") if (one / SUMS).exists())
        return sorted(number for number in found if number is not None)

    def begin(self, iteration: int) -> Path:
        """Return a new folder to write a checkpoint into, after removing what an earlier crash left behind.

        Raises:
            ValueError: a checkpoint of another trainer has this name.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        target = self.of(iteration)
        if target.exists() and not (target / PROGRESS).exists() and not (target / SUMS).exists():
            raise ValueError(f"{target.name} exists and is not a native checkpoint")
        for left in (*self.path.glob(f"{SAVING}*"), *self.path.glob(f"{REMOVING}*")):
            shutil.rmtree(left)
        for left in self.path.glob(f".{LATEST}.*"):
            left.unlink()
        aside = self.aside(iteration)
        aside.mkdir()
        return aside

    def aside(self, iteration: int) -> Path:
        """Return the temporary folder that a checkpoint is written into."""
        return self.path / f"{SAVING}{self.of(iteration).name}"

    def publish(self, iteration: int, progress: str, sums: Mapping[str, str], keep_last: int | None) -> None:
        """Publish a written checkpoint as the latest, and remove older ones; ``sums`` are the checksums of its files.

        Raises:
            ValueError: files are missing.
        """
        aside, target = self.aside(iteration), self.of(iteration)
        missing = sorted(name for name in sums if not (aside / name).exists())
        if missing:
            raise ValueError(f"{missing[0]} is missing in {aside}: the rank that wrote it sees a different folder")
        write_durably(aside / PROGRESS, progress)
        every = {**sums, PROGRESS: checksum(aside / PROGRESS)}
        write_durably(aside / SUMS, "".join(f"{every[name]}  {name}\n" for name in sorted(every)))
        if target.exists():
            self._remove(target)
        aside.rename(target)
        sync_folder(self.path)
        write_durably(self.path / LATEST, str(iteration))
        if keep_last is not None:
            # Later iterations belong to an abandoned run, which must not be resumed.
            for old in [one for one in self.saved() if one < iteration][: 1 - keep_last or None]:
                self._remove(self.of(old))

    def abandon(self, iteration: int) -> None:
        """Remove an incomplete checkpoint, if possible."""
        shutil.rmtree(self.aside(iteration), ignore_errors=True)

    def _remove(self, folder: Path) -> None:
        aside = folder.with_name(REMOVING + folder.name)
        folder.rename(aside)
        shutil.rmtree(aside)


def recorded_sums(folder: Path) -> dict[str, str]:
    """Return the recorded checksums of a checkpoint's files, by name.

    Raises:
        ValueError: the checksums are missing or unreadable, or do not match the names of the files.
    """
    if not folder.exists():
        raise ValueError("it does not exist")
    if not (folder / SUMS).exists():
        raise ValueError(f"it has no {SUMS}")
    words = [line.split("  ", 1) for line in regular_files.read_text(folder / SUMS, errors="replace").splitlines()]
    if not all(len(pair) == 2 for pair in words):
        raise ValueError(f"its {SUMS} cannot be read")
    sums = {name: value for value, name in words}
    files = {one.name for one in folder.iterdir()} - {SUMS}
    for name in sorted(files):
        if (folder / name).exists() and not (folder / name).is_file():
            raise ValueError(f"{name} is not a regular file")
    for name in sorted(files ^ set(sums)):
        raise ValueError(f"{name} is missing" if name in sums else f"{name} has no checksum")
    return sums


def damage(folder: Path, sums: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return a description of the first damage to the named files of a checkpoint, or None.

    Raises:
        OSError: this process has run out of a resource; the files may be valid.
    """
    for name in names:
        try:
            if checksum(folder / name) != sums[name]:
                return f"{name} differs from its recorded checksum"
        except OSError as error:
            if ran_out(error):
                raise OSError(error.errno, system_error(error), str(folder / name)) from error
            return f"{name}: {error.strerror}"
    return None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with regular_files.open_binary(path) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def write_durably(path: Path, text: str) -> None:
    """Write a file atomically and sync it to the disk."""
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
    """Sync the entries of a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
