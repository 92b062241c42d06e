"""Per-user cache of the emulation's downloads and builds; each entry is created atomically."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ascend_adapt.errors import EmulationError

_SIZES = ".sizes.json"


def path(environ: Mapping[str, str]) -> Path:
    """Return the path of the cache: ASCEND_ADAPT_CACHE, or else ascend_adapt in XDG_CACHE_HOME or ~/.cache."""
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(environ.get("ASCEND_ADAPT_CACHE") or os.path.join(home, "ascend_adapt")).absolute()


def folder(environ: Mapping[str, str]) -> Path:
    """Return the cache folder, and create it if necessary. Processes load code from it.

    Raises:
        EmulationError: the folder cannot be created, or other users may write to it.
    """
    home = path(environ)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.stat()
    except OSError as error:
        raise EmulationError(
            f"{home}: {error.strerror}, expected a folder for the emulation's files — set ASCEND_ADAPT_CACHE"
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EmulationError(
            f"{home}: other users may write to it, and code is loaded from it — "
            "chmod 0700 it, or set ASCEND_ADAPT_CACHE"
        )
    return home


def made_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return ``cache/name``; if it does not exist, ``make`` fills a temporary folder, which is then renamed.

    If several processes need the same entry, one creates it and the others wait.

    Raises:
        EmulationError: the cache is not writable, or files of the folder are missing or have changed.
    """
    path = cache / name
    if path.is_dir():
        return checked(path)
    with writing(cache):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(cache), _aside(path) as aside:
            if not path.is_dir():
                make(aside)
                (aside / _SIZES).write_text(json.dumps(_sizes(aside)))
                aside.rename(path)
    return path


def checked(made: Path) -> Path:
    """Check the files of an existing folder and return it; loading a truncated library would cause SIGBUS.

    Raises:
        EmulationError: a file is missing or its size has changed.
    """
    try:
        sizes = json.loads((made / _SIZES).read_text())
    except FileNotFoundError:
        return made  # An earlier version of this package did not record file sizes.
    except (OSError, ValueError, RecursionError):
        sizes = {_SIZES: -1}
    for name, size in sizes.items():
        file = made / name
        if not file.is_file() or file.stat().st_size != size:
            raise EmulationError(
                f"{made}: {name} is missing or has changed, expected a complete folder — remove this folder; it "
                "will be created again"
            )
    return made


@contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Context manager: convert an OSError of the block into an error about the cache.

    Raises:
        EmulationError: the cache cannot be written to, or the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise EmulationError(
            f"{cache}: {error.strerror or error}, expected a writable folder with 200 MB free — set "
            "ASCEND_ADAPT_CACHE to another"
        ) from error


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        # A killed process has left this folder: a running process would hold the lock.
        shutil.rmtree(left, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
