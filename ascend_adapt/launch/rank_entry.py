"""What each rank runs: enable(), then the user's script as ``__main__``, with its arguments as typed."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from ascend_adapt import runtime
from ascend_adapt.errors import AdaptError


def main(argv: Sequence[str]) -> None:
    """Run ``[-m] target [arguments ...]``; on an error of this package print it and exit with code 1."""
    is_module, rest = argv[0] == "-m", list(argv[1:] if argv[0] == "-m" else argv)
    try:
        runtime.enable()
        _report_status()
        if is_module:
            # python -m puts the current folder first, where `python -m rank_entry` has left it already.
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            _run_script(rest)
    except AdaptError as error:
        if os.environ.get("ASCEND_ADAPT_DEBUG"):
            raise
        print(f"ascend_adapt: {error}", file=sys.stderr)
        sys.exit(1)


def _run_script(argv: list[str]) -> None:
    path = argv[0]
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    # A module of its own, as python itself makes one: pickles and spawned children look things up in it.
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    exec(runtime.script_code(path, loader.get_data(path)), vars(module))


def _report_status() -> None:
    folder = os.environ.get("ASCEND_ADAPT_RUN_DIR")
    if folder:
        rank = int(os.environ["RANK"])
        path = Path(folder) / f"adapt-status.{rank}.json"
        runtime.at_first_apply(lambda: _write_status(path, rank))
        atexit.register(_write_status, path, rank)


def _write_status(path: Path, rank: int) -> None:
    """Write the status of this rank, whole or not at all."""
    data = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid(), **runtime.status().to_json()}
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(data, indent=1) + "\n")
    aside.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
