"""Shell completion for `ascend-adapt` and `ascend-run`, by shtab."""

from __future__ import annotations

import argparse

from ascend_adapt.errors import AdaptError, not_installed

SHELLS = ("bash", "zsh", "tcsh")
_PATHS = {"FILE", "DIR", "FOLDER", "PATH", "RUN", "RUN_DIR", "LOGFILE"}


class CompletionError(AdaptError):
    """shtab is not installed."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return a shell script that completes a program's options, commands and files.

    Raises:
        CompletionError: shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise CompletionError(not_installed("shtab", "shell completion", "shell")) from error
    for action in _actions(parser):
        if action.metavar in _PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            found += [inner for command in action.choices.values() for inner in _actions(command)]
    return found
