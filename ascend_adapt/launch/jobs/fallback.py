"""Fallback to the native trainer for a code base that cannot be imported here.

OneFlow has no release for NPUs, so `oneflow_gpt.training` falls back whenever OneFlow is not installed. Other scripts
fall back only with `--fallback native`, and only if a package that they import is missing.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.request import NATIVE, Request

ONEFLOW = "oneflow_gpt.training"
DIALECTS = {"pretrain_gpt.py": "megatron", "deepy.py": "neox"}
"""The dialect of each script's arguments."""


def instead(request: Request) -> tuple[Request, str] | None:
    """Return a native request that replaces this request, and the reason; None if the original can be started.

    Raises:
        LaunchError: --fallback is given for a script whose arguments the native trainer does not read.
    """
    module = _oneflow_arguments(request)
    if module is not None:
        missing = _missing(("oneflow", "oneflow_gpt"), os.getcwd())
        if not missing:
            return None
        return _native(request, "oneflow", module), _why(ONEFLOW, missing)
    if request.fallback is None:
        return None
    name = Path(request.target).name
    if request.form != "script" or name not in DIALECTS:
        raise LaunchError(
            f"--fallback native: supports {', '.join(DIALECTS)} and {ONEFLOW}, not {request.target} — leave it out"
        )
    missing = _missing(_imports(Path(request.target)), str(Path(request.target).absolute().parent))
    if not missing:
        return None
    arguments = request.arguments
    if name == "deepy.py" and arguments and arguments[0].endswith(".py"):
        # The first argument of deepy.py is the script that it starts.
        arguments = arguments[1:]
    return _native(request, DIALECTS[name], arguments), _why(request.target, missing)


def _oneflow_arguments(request: Request) -> tuple[str, ...] | None:
    if request.form == "module" and request.target == ONEFLOW:
        return request.arguments
    is_python = request.form == "command" and re.fullmatch(r"python[0-9.]*", Path(request.target).name)
    words = [word for word in request.arguments if word != "-u"] if is_python else []
    return tuple(words[2:]) if words[:2] == ["-m", ONEFLOW] else None


def _native(request: Request, dialect: str, arguments: Sequence[str]) -> Request:
    return replace(
        request, native=dialect, target=NATIVE, form="module", arguments=tuple(arguments), once=False, fallback=None
    )


def _why(target: str, missing: Sequence[str]) -> str:
    named = ", ".join(missing)
    return f"{target}: {named} cannot be imported here; the native trainer uses its arguments, this code does NOT run"


def _missing(names: Sequence[str], folder: str) -> list[str]:
    places = [folder, *sys.path]
    known = (*sys.stdlib_module_names, *sys.builtin_module_names)
    return [name for name in names if name not in known and PathFinder.find_spec(name, places) is None]


def _imports(script: Path) -> list[str]:
    """Return the packages that a script imports at top level, in order; imports inside `try` are optional and left out.

    Raises:
        LaunchError: the script cannot be read.
    """
    try:
        tree = ast.parse(regular_files.read_bytes(script))
    except (OSError, SyntaxError, ValueError) as error:
        raise LaunchError(f"{script}: cannot be read ({error}) — pass the path of a readable Python file") from error
    found = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            found.append(str(statement.module))
    return list(dict.fromkeys(name.partition(".")[0] for name in found))
