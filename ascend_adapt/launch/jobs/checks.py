"""Checks of a command line before a job is planned; all problems are reported at once."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ascend_adapt.errors import AdaptError, LaunchError, SettingsError
from ascend_adapt.launch.jobs import missing_modules
from ascend_adapt.launch.placement import environment
from ascend_adapt.launch.request import Request
from ascend_adapt.launch.transport import choice


class UsageError(LaunchError):
    """Usage error: the command line names something that cannot be used."""


class Problems:
    """Collects the problems of one command line, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self._found: list[AdaptError] = []

    def collect(self, check: Callable[[], object]) -> None:
        """Run one check and collect the error that it raises."""
        try:
            check()
        except AdaptError as error:
            self._found.append(error)

    def raise_all(self) -> None:
        """Raise all problems as one error.

        Raises:
            UsageError: at least one problem is in the command line itself.
            LaunchError: there are problems, but none in the command line.
        """
        texts = list(dict.fromkeys(map(str, self._found)))
        if not texts:
            return
        is_usage = any(isinstance(error, (SettingsError, UsageError)) for error in self._found)
        raise (UsageError if is_usage else LaunchError)("\n".join(texts))


def check(request: Request, environ: Mapping[str, str]) -> None:
    """Check everything that is independent of devices and hosts.

    Raises:
        UsageError: the target or an option cannot be used.
    """
    problems = Problems()
    problems.collect(lambda: check_target(request))
    problems.collect(lambda: _check_native_options(request))
    problems.collect(lambda: choice.check_name(request.launcher))
    problems.collect(lambda: environment.check_exported(environ, request.export))
    problems.collect(lambda: missing_modules.check(request, environ))
    problems.raise_all()


def check_bootstrap() -> None:
    """Check that other users cannot change the code that every Python process of the job runs.

    Raises:
        LaunchError: the folder is world-writable.
    """
    if os.stat(environment.BOOTSTRAP).st_mode & stat.S_IWOTH:
        raise LaunchError(
            f"{environment.BOOTSTRAP}: is world-writable, and every Python process of the job runs its code — "
            "run chmod o-w on it"
        )


def check_compile_mode(request: Request, device: str, adapts: bool) -> None:
    """Check that ``--npu-compile-mode`` can have an effect.

    Raises:
        UsageError: the option cannot have an effect.
    """
    if request.npu_compile_mode != "keep" and not (adapts and device == "npu"):
        why = f"this job runs on {device}" if adapts else "this job runs without patches"
        raise UsageError(f"--npu-compile-mode {request.npu_compile_mode}: needs an NPU, but {why} — remove the option")


def check_target(request: Request) -> None:
    """Check that the script, module or command can be started.

    Raises:
        UsageError: the target cannot be started.
    """
    if request.form == "command":
        if shutil.which(request.target) is None:
            raise UsageError(
                f"command {request.target!r}: not found on PATH — pass a script.py, -m and a module, or a command"
            )
    elif request.form == "module":
        _check_module(request.target)
    else:
        _check_script(Path(request.target))


def _check_native_options(request: Request) -> None:
    given = (
        *(request.compile, request.eval_only, request.exit_signals),
        *(one is not None for one in (request.profile, request.sample_prompts, request.sample_tokens)),
    )
    if not request.native and any(given):
        raise UsageError(
            "--compile, --eval-only, --sample-prompts, --sample-tokens, --profile, --exit-signal: need --native — "
            "leave them out, or use the script's options"
        )
    if request.sample_tokens is not None and request.sample_prompts is None:
        raise UsageError("--sample-tokens: needs --sample-prompts — add --sample-prompts, or remove --sample-tokens")


def _check_script(path: Path) -> None:
    if path.exists() and not path.is_file():
        # Opening a named pipe would block.
        raise UsageError(f"script {str(path)!r}: is not a file — pass the path of a readable Python file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"script {str(path)!r}: {error.strerror} — pass the path of a readable Python file") from error


def _check_module(name: str) -> None:
    # python -m searches the current folder first; a console script searches its own folder instead.
    root = name.partition(".")[0]
    # An editable install may use an import finder instead of a path.
    if PathFinder.find_spec(root, [os.getcwd(), *sys.path]) is None and find_spec(root) is None:
        raise UsageError(
            f"module {name!r}: no {root!r} in {os.getcwd()} or on sys.path — pass a module that can be imported"
        )
