"""What the emulation downloads and builds, in a folder of this user's own: made once, whole or not at all."""

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
    """Return where the cache folder is: ASCEND_ADAPT_CACHE, else ascend_adapt in XDG_CACHE_HOME or ~/.cache."""
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(environ.get("ASCEND_ADAPT_CACHE") or os.path.join(home, "ascend_adapt")).absolute()


def folder(environ: Mapping[str, str]) -> Path:
    """Return the cache folder, made if need be. Code is loaded from it.

    Raises:
        EmulationError: it cannot be made, or somebody else may write to it.
    """
    home = path(environ)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.stat()
    except OSError as error:
        raise EmulationError(
            f"{home}: {error.strerror}, expected a folder for what is built — set ASCEND_ADAPT_CACHE"
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EmulationError(
            f"{home}: others may write to it, and code is loaded from it — chmod 0700 it, or set ASCEND_ADAPT_CACHE"
        )
    return home


def made_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return ``cache/name``; if it is not there, ``make`` fills an empty folder beside it, which is then renamed.

    Of several processes one makes it and the others wait.

    Raises:
        EmulationError: the cache cannot be written to, or the folder is no longer what was made.
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
    """Return a folder that was made before, if it is still as it was made; what is loaded half would end with SIGBUS.

    Raises:
        EmulationError: a file is gone, or has another size.
    """
    try:
        sizes = json.loads((made / _SIZES).read_text())
    except FileNotFoundError:
        return made  # by a version that did not note them
    except (OSError, ValueError, RecursionError):
        sizes = {_SIZES: -1}
    for name, size in sizes.items():
        file = made / name
        if not file.is_file() or file.stat().st_size != size:
            raise EmulationError(
                f"{made}: {name} is not there, or not as it was made, expected a whole folder — remove this folder, it "
                "is made anew"
            )
    return made


@contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Turn what the operating system refuses in the block into an error about the cache.

    Raises:
        EmulationError: the cache cannot be written to, or has no room left.
    """
    try:
        yield
    except OSError as error:
        raise EmulationError(
            f"{cache}: {error.strerror or error}, expected a folder to write to, with 200 MB free — set "
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
        shutil.rmtree(left, ignore_errors=True)  # by one that was killed: whoever is at work has the lock
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
