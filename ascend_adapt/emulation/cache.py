"""What the emulation downloads and builds, in a folder of this user's own: made once, whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ascend_adapt.errors import EmulationError


def folder(environ: Mapping[str, str]) -> Path:
    """Return the cache folder, made if need be.

    ``ASCEND_ADAPT_CACHE``, else ``ascend_adapt`` in XDG_CACHE_HOME or ~/.cache. Code is loaded from it.

    Raises:
        EmulationError: it cannot be made, or somebody else may write to it.
    """
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(environ.get("ASCEND_ADAPT_CACHE") or os.path.join(home, "ascend_adapt")).absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise EmulationError(
            f"{path}: {error.strerror}, expected a folder for what is built — set ASCEND_ADAPT_CACHE"
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EmulationError(
            f"{path}: others may write to it, and code is loaded from it — chmod 0700 it, or set ASCEND_ADAPT_CACHE"
        )
    return path


def made_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return ``cache/name``; if it is not there, ``make`` fills an empty folder beside it, which is then renamed.

    Of several processes one makes it and the others wait.
    """
    path = cache / name
    if path.is_dir():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(cache), _aside(path) as aside:
        if not path.is_dir():
            make(aside)
            aside.rename(path)
    return path


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
