"""Index cache: sample indices on disk, built by one rank per storage, and validated by each rank that reads them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt import regular_files
from ascend_adapt.data.mapping import map_npy
from ascend_adapt.errors import DataError, system_error

Arrays = Mapping[str, NDArray[Any]]

FORMAT = 1
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_OF_SILENT_WAITING = 30.0


def builds_index_cache(rank: int, local_rank: int, shared_storage: bool) -> bool:
    """Return whether this rank builds the cache: the job's first rank on shared storage, else the host's first."""
    return rank == 0 if shared_storage else local_rank == 0


class IndexCache:
    """A folder of indices. Each index is in a subfolder named by the digest of its description."""

    def __init__(self, folder: str | os.PathLike[str], *, builds: bool, wait_seconds: float = 1800.0):
        self.folder = Path(folder)
        self.builds = builds
        self.wait_seconds = wait_seconds

    def load(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """Return the memory-mapped arrays of ``description``. If they are missing, the building rank calls ``build``.

        Raises:
            DataError: the folder cannot be written, or no other rank built the arrays in time.
        """
        text = json.dumps({"format": FORMAT, **description}, sort_keys=True)
        place = self.folder / hashlib.sha256(text.encode()).hexdigest()[:32]
        arrays = _read(place, text)
        if arrays is None and self.builds:
            try:
                self._write(place, text, build())
            except OSError as error:
                raise DataError(
                    f"{error.filename or place}: {system_error(error)}, expected to write the index cache there — "
                    "choose another folder"
                ) from error
            arrays = _read(place, text)
        began, is_announced = time.monotonic(), False
        deadline = began + self.wait_seconds
        while arrays is None:
            if not is_announced and time.monotonic() > began + SECONDS_OF_SILENT_WAITING:
                print(f"index cache: waiting for another rank to build {place}", file=sys.stderr, flush=True)
                is_announced = True
            if self.builds or time.monotonic() > deadline:
                raise DataError(
                    f"{place}: no valid index cache after {self.wait_seconds:.0f} s, expected another rank to build it"
                    " — is the storage shared by all hosts? If not, use shared_storage=False"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)
            arrays = _read(place, text)
        return arrays

    def _write(self, place: Path, text: str, arrays: Arrays) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=self.folder, prefix=".unfinished-"))
        try:
            for name, array in arrays.items():
                np.save(aside / f"{name}.npy", array)
            kinds = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
            (aside / "description.json").write_text(json.dumps({"description": text, "arrays": kinds}))
            aside.chmod(0o755)
            # An existing entry is invalid, since otherwise it would have been read.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(place)
            try:
                aside.rename(place)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # another rank was first; its entry is validated on reading
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _read(place: Path, text: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays in ``place`` if they are complete and unchanged, else None.

    Raises:
        DataError: the arrays exist, but this process cannot read them, so waiting for another rank would not help.
    """
    try:
        saved = json.loads(regular_files.read_text(place / "description.json"))
        arrays = {name: map_npy(place / f"{name}.npy") for name in saved["arrays"]}
        kinds = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
        return arrays if saved["description"] == text and saved["arrays"] == kinds else None
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # another host replaced the entry while it was read
            return None
        raise DataError(
            f"{error.filename or place}: {system_error(error)}, expected a readable index cache — check it, or "
            "choose another folder"
        ) from error
