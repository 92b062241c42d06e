"""Rejects a script that imports a module which the installed release of a package does not have.

A missing module is an error only if a known problem lists the affected releases: some packages create modules when
they are imported, and patches provide others.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.request import Request

_CHANGED = ("sys.path", "sys.modules", "sys.meta_path", "site.addsitedir")


def check(request: Request, environ: Mapping[str, str]) -> None:
    """Check the imports at the top level of the job's script.

    Raises:
        LaunchError: the installed release of a package lacks some of these modules; one line for each import.
    """
    script = _script(request)
    lacking = list(_lacking(script)) if script is not None else []
    if not lacking:
        return
    from ascend_adapt.problems import explanation, known
    from ascend_adapt.problems.facts import of_names
    from ascend_adapt.problems.log_text import LogText

    problems = [one for one in known.problems(environ)[0] if one.symptom and one.when and one.when.versions]
    facts = of_names({name for one in problems if one.when for name in one.when.distributions}, environ, "")
    refused = []
    for line, code, missing in lacking:
        raised = f"{code}\nModuleNotFoundError: No module named {missing!r}"
        shown = explanation.explain(LogText(raised), problems, facts)
        for found in shown:
            if found.problem.when and facts.known_true(found.problem.when):
                here = ", ".join(facts.evidence_of(found.problem.when))
                refused.append(f"{script}:{line}: `{code}`, but {here} has no {missing}: {found.cause} — {found.do}")
                break
    if refused:
        raise LaunchError("\n".join(refused))


def _script(request: Request) -> Path | None:
    """Return the script that this interpreter will run, or None if another interpreter may run it."""
    if request.form == "module":
        return None
    words = [request.target]
    if request.form == "command":
        program = shutil.which(request.target)
        if program is None or os.path.dirname(program) != os.path.dirname(sys.executable):
            return None
        words = [word for word in request.arguments if word.endswith(".py")][:1]
    return next((Path(word) for word in words if Path(word).is_file()), None)


def _lacking(script: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, statement and missing part of each unconditional import.

    Stop at a statement that uses sys.path or sys.modules: after it, the script may import its own copy of a package.
    """
    try:
        tree = ast.parse(regular_files.read_bytes(script))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # Python will report the problem when the script runs.
    for statement in tree.body:
        if any(isinstance(node, ast.Attribute) and ast.unparse(node) in _CHANGED for node in ast.walk(statement)):
            return
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        for name in names:
            if missing := _missing_part(name, str(script.absolute().parent)):
                yield statement.lineno, ast.unparse(statement), missing


def _missing_part(module: str, folder: str) -> str:
    """Return the module name that Python's error will show if a module of an installed package is missing, else ""."""
    parts, places = module.split("."), [folder, *sys.path]
    for number, part in enumerate(parts, 1):
        # Only the last part of the name: a full name of a namespace package would be looked up in sys.modules[parent].
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return ".".join(parts[:number]) if number > 1 else ""
        places = list(spec.submodule_search_locations or ())
    return ""
