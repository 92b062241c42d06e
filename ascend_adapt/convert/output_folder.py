"""Atomic output folder of a conversion: either complete or absent.

The folder is written next to its final path as ``.converting-NAME-PID``, synced to disk with its checksums, and
renamed. The next conversion to the same path removes what a killed one left behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import AdaptError, CheckpointError, behind, system_error
from ascend_adapt.native.checkpoint.folder import SUMS, checksum, sync_folder
from ascend_adapt.whole_numbers import whole_number

UNVERIFIED = ".unverified"
_CONVERTING = ".converting-"


@contextmanager
def unfinished(output: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; it is removed if the block raises.

    Raises:
        CheckpointError: the output path exists, or the disk is full.
    """
    for taken in (output, output.with_name(output.name + UNVERIFIED)):
        if taken.exists() and (not taken.is_dir() or any(taken.iterdir())):
            raise CheckpointError(f"{taken}: exists, expected a new or empty folder — remove it, or choose another")
    folder = output.with_name(f"{_CONVERTING}{output.name}-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        for left in output.parent.glob(f"{_CONVERTING}{output.name}-*"):
            if not _is_alive(left.name.rpartition("-")[2]):
                shutil.rmtree(left)
        folder.mkdir()
        yield folder
    except AdaptError:
        raise
    except Exception as error:
        refused = behind(error)
        if refused is None:
            raise
        raise CheckpointError(
            f"{output}: cannot be written ({system_error(refused)}) — free some space, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, output: Path, sums_in: Path) -> None:
    """Write the checksums of a folder's files into ``sums_in``, sync the folder, and rename it to its final path."""
    lines = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        sync_folder(path)
        if path.is_relative_to(sums_in):
            lines.append(f"{checksum(path)}  {path.relative_to(sums_in)}\n")
    (sums_in / SUMS).write_text("".join(lines), encoding="utf-8")
    sync_folder(sums_in / SUMS)
    for inner in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
        sync_folder(inner)
    if output.is_dir():
        output.rmdir()  # checked to be empty
    folder.rename(output)
    sync_folder(output.parent)


def check_sums(folder: Path) -> None:
    """Verify a checkpoint's files against the checksums in its folder or in the parent folder, if there are any.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    home = next((one for one in (folder, folder.parent) if (one / SUMS).is_file()), None)
    if home is None:
        return
    for line in regular_files.read_text(home / SUMS, errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        path = home / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(
                f"{home / SUMS}: lists {name[:100]!r}, expected only files in its folder — do not use this checkpoint"
            )
        if not path.is_file() or checksum(path) != expected:
            what = "differs from its recorded checksum" if path.is_file() else "is missing"
            raise CheckpointError(f"{path}: {what}, expected the file that {SUMS} lists — restore it")


def _is_alive(pid: str) -> bool:
    return whole_number(pid) is not None and Path(f"/proc/{pid}").exists()
