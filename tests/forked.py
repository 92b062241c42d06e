"""Python code in a process of its own, forked from one that has imported torch: a second less than a new interpreter.

For tests that do not depend on torch being imported after the rest of the process has begun.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch"])


def run(code: str, folder: Path, *arguments: str, timeout: float = 280, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as ``python -c`` does; its output passes through files of ``folder``.

    Raises:
        subprocess.TimeoutExpired: it had not ended after ``timeout`` seconds, and was killed.
    """
    printed, errors = folder / "forked.stdout", folder / "forked.stderr"
    given = (code, list(arguments), {**os.environ, **env}, printed, errors)
    process = _CONTEXT.Process(target=_execute, args=given)
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(code, timeout, printed.read_bytes(), errors.read_bytes())
    return subprocess.CompletedProcess(code, process.exitcode, printed.read_text(), errors.read_text())


def _execute(code: str, arguments: list[str], environ: dict[str, str], printed: Path, errors: Path) -> None:
    for number, path in ((1, printed), (2, errors)):
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(main))
