"""Finds the line of the user's code that makes a call on the device; only ranks import this module.

The user's code is any code outside installed packages and Python: a script, a package next to it, a checkout.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple


class Line(NamedTuple):
    """A line of a source file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.file else "?"


UNKNOWN = Line("", 0)

_PACKAGE = str(Path(__file__).parents[1])
_RUNTIME = tuple(str(Path(_PACKAGE, room)) for room in ("emulation", "launch", "runtime", "patches", "kernels"))
_is_own: dict[CodeType, bool] = {}


def of_caller() -> Line:
    """Return the innermost line of the user's code in this thread, or else in the main thread.

    torch runs autograd and hooks in threads that have no Python frame of the user. In this case, the line is in the
    main thread, which called backward(). If the program consists only of installed code, the line is in that code.
    """
    # No variable may hold this function's own frame: the cycle would keep the tensors of all callers alive.
    return _innermost(sys._getframe(1)) or _innermost(_of_main_thread()) or UNKNOWN


def is_inside(module: str) -> bool:
    """Return whether a function of a module, or of a package's modules, is on the call stack of this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == module or name.startswith(f"{module}."):
            return True
        frame = frame.f_back
    return False


def _of_main_thread() -> FrameType | None:
    main = threading.main_thread().ident
    return None if main is None or main == threading.get_ident() else sys._current_frames().get(main)


def _innermost(frame: FrameType | None) -> Line | None:
    outermost = None
    while frame is not None:
        code = frame.f_code
        own = _is_own.get(code)
        if own is None:
            own = _is_own[code] = _belongs_to_user(code.co_filename)
        if own:
            return Line(code.co_filename, frame.f_lineno)
        if not code.co_filename.startswith(("<", *_RUNTIME)):
            outermost = outermost or (frame if frame.f_globals.get("__name__") == "__main__" else None)
        frame = frame.f_back
    return None if outermost is None else Line(outermost.f_code.co_filename, outermost.f_lineno)


def _belongs_to_user(file: str) -> bool:
    return not file.startswith(("<", *_installed()))


_folders: list[str] = []


def _installed() -> tuple[str, ...]:
    if not _folders:
        torch_npu = sys.modules.get("torch_npu")
        site = [] if torch_npu is None else [str(Path(torch_npu.__file__ or "").parents[1])]
        paths = sysconfig.get_paths()
        found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        plugins = sys.modules.get("ascend_adapt_plugins")
        ours = [_PACKAGE, *(str(path) for path in getattr(plugins, "__path__", ()))]
        _folders.extend(f"{folder.rstrip('/')}/" for folder in (*found, *site, *ours))
    return tuple(_folders)
