"""What each rank does: join the job, then run the user's script as ``__main__`` with unchanged arguments."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from ascend_adapt import switches
from ascend_adapt.errors import AdaptError
from ascend_adapt.launch.bootstrap import _ascend_adapt_signals
from ascend_adapt.launch.in_process import member
from ascend_adapt.launch.one_host import failures
from ascend_adapt.runtime import enabling


def main(argv: Sequence[str]) -> None:
    """Run ``[-m] target [arguments ...]``; print an error of this package and exit with code 1."""
    is_module, rest = argv[0] == "-m", list(argv[1:] if argv[0] == "-m" else argv)
    _ascend_adapt_signals.outlive_passed()  # Under --no-adapt there is no bootstrap.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Line-buffered, as on a terminal, so that the launcher can forward each line at once.
            stream.reconfigure(line_buffering=True)
    # Under --no-adapt no bootstrap has set this variable. Children of this rank must not be mistaken for the rank.
    os.environ.setdefault("ASCEND_ADAPT_RANK_PID", str(os.getpid()))
    debug = False
    try:
        debug = switches.is_on(os.environ, "ASCEND_ADAPT_DEBUG")
        member.join()
        _run(is_module, rest)
        enabling.check()
    except AdaptError as error:
        failures.record(os.environ, 1, str(error))
        if debug:
            raise
        print(f"ascend_adapt: {error}", file=sys.stderr)
        sys.exit(1)


def _run(is_module: bool, argv: list[str]) -> None:
    try:
        if is_module:
            _put_first_on_path(os.getcwd())
            sys.argv = argv
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        else:
            _run_script(argv)
    except (AdaptError, KeyboardInterrupt):
        raise
    except SystemExit as request:
        if request.code is None or request.code == 0:
            enabling.check()
        elif isinstance(request.code, int):
            failures.record(os.environ, request.code & 0xFF, failures.exit_described(request))
        else:
            failures.record(os.environ, 1, f"sys.exit: {request.code}")
        raise
    except BaseException as error:
        failures.record(os.environ, 1, failures.described(error))
        error.__traceback__ = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _run_script(argv: list[str]) -> None:
    path = argv[0]
    sys.argv = argv
    _put_first_on_path(os.path.dirname(os.path.abspath(path)))
    # Python also runs a script in a new module. Pickle and spawned children look up names in it.
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    exec(enabling.script_code(path, loader.get_data(path)), vars(module))


def _put_first_on_path(folder: str) -> None:
    """Replace the folder of this rank's program with the one that Python puts first for a script or for ``-m``."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without this package's frames before the script."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_next is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback
