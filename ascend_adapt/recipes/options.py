"""Options of each version of a dialect, and the values given for one run.

``upstream/*.json`` are recorded facts: names, types, defaults and choices, read from upstream's own parsers by
tests/recipes/record_upstream_options.py.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from ascend_adapt.config.checks import Problems
from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.same_options import same_options

_RECORDED = Path(__file__).with_name("upstream")


@dataclass(frozen=True)
class Version:
    """One version of an upstream: its name, the recorded commit, and the facts of each option by name."""

    dialect: str
    name: str
    source: str
    options: Mapping[str, Mapping[str, Any]]

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each option, by its dest."""
        return {facts.get("dest", name): facts.get("default") for name, facts in self.options.items()}


@cache
def version(dialect: str, name: str) -> Version:
    """Return a recorded version."""
    recorded = json.loads((_RECORDED / f"{dialect}-{name}.json").read_text())
    return Version(dialect, name, recorded["source"], recorded["options"])


def versions(dialect: str) -> list[Version]:
    """Return the recorded versions of a dialect; a third party's dialect has none."""
    return [
        version(dialect, path.stem.removeprefix(f"{dialect}-")) for path in sorted(_RECORDED.glob(f"{dialect}-*.json"))
    ]


def choose_version(
    dialect: str,
    names: Collection[str],
    versions: Iterable[str],
    asked: str | None,
    accepts: Callable[[Version, str], bool] = lambda version, name: True,
) -> tuple[Version, list[str]]:
    """Return the version that the options are for, and a problem for each of ``names`` that it lacks.

    It is the first of ``versions`` that has every option, preferably one that ``accepts`` each option's value.

    Raises:
        ConfigError: ``asked`` is not the name of a version.
    """
    known = [version(dialect, one) for one in versions]
    if asked is not None:
        matching = [one for one in known if one.name == asked]
        if not matching:
            raise ConfigError(
                f"--upstream-version: {asked!r}, expected one of {', '.join(one.name for one in known)} — choose one"
            )
        known = matching

    def fit(one: Version) -> tuple[int, int]:
        has = [name for name in names if name in one.options]
        return len(has), sum(accepts(one, name) for name in has)

    best = max(known, key=fit)
    unknown = [name for name in dict.fromkeys(names) if name not in best.options]
    return best, [_unknown(dialect, name, best, is_asked=asked is not None) for name in unknown]


def _unknown(dialect: str, name: str, nearest: Version, *, is_asked: bool) -> str:
    close = difflib.get_close_matches(name, nearest.options, 1)
    elsewhere = [one.stem.partition("-")[2] for one in sorted(_RECORDED.glob(f"{dialect}-*.json"))]
    has_it = [one for one in elsewhere if one != nearest.name and name in version(dialect, one).options]
    if has_it:
        step = f"{', '.join(has_it)} {'has' if len(has_it) == 1 else 'have'} it"
        more = f"not all of the others: leave out what only {nearest.name} has"
        step += ": choose with --upstream-version" if is_asked else f", and {more}"
    elif same := same_options(dialect, name, nearest.options):
        step = f"use {same}, which has the same meaning here"
    elif close:
        step = f"did you mean {close[0]}?"
    else:
        step = "correct it or leave it out"
    return f"{name}: unknown to {dialect} ({nearest.source}) — {step}"


UNKNOWN: Any = object()
"""Result of a step that failed or that depends on a failed step."""


class Options:
    """Options of one run: the given values, and the defaults of its version for the rest. Reads are recorded.

    ``attempt`` runs one step of a recipe and keeps its problem; ``build`` makes the configuration, or raises all
    problems at once. A given option that is not at its default must be read by the recipe or be in ``ignored``;
    otherwise it is a problem, because it would be dropped silently.
    """

    def __init__(
        self, of: Version, given: Mapping[str, Any], ignored: Mapping[str, str], problems: Iterable[str] = ()
    ) -> None:
        self.version = of
        self.given = dict(given)
        self._defaults = of.defaults
        self._spelled: dict[str, str] = {facts.get("dest", name): name for name, facts in of.options.items()}
        self._ignored = {name: reason for reason, names in ignored.items() for name in names.split()}
        self._read: set[str] = set()
        self._problems = Problems()
        self._problems.found += problems

    def attempt(self, step: Callable[..., Any], *arguments: Any, otherwise: Any = UNKNOWN, **named: Any) -> Any:
        """Return the result of a step, or ``otherwise`` if it raises ConfigError or one of its arguments is missing."""
        if not any(value is UNKNOWN for value in (*arguments, *named.values())):
            with self._problems:
                return step(*arguments, **named)
        # The options that the step would have read are recorded as read.
        self._read |= _strings_of(step.__module__)
        return otherwise

    def require(self, *names: str) -> None:
        """Note a problem for each option that is not given and has no default."""
        for name in names:
            self.attempt(self.required, name)

    def build(self, **parts: Any) -> TrainConfig:
        """Return the configuration of all parts.

        Raises:
            ConfigError: all problems, one per line.
        """
        config = UNKNOWN if self._problems.found else self.attempt(TrainConfig, **parts)
        self._problems.found += self._unsupported()
        self._problems.raise_all()
        return cast(TrainConfig, config)

    def __call__(self, name: str, absent: Any = None) -> Any:
        """Return the value of ``name``; ``absent`` if the version has no such option, or its value is None.

        Raises:
            ConfigError: null is given for an option whose default is not None.
        """
        self._read.add(name)
        default = self._defaults.get(name)
        value = self.given.get(name, default)
        if value is None and default is not None:
            raise ConfigError(
                f"{self.spelled(name)}: null, expected a value such as {default!r} — set one, or leave it out"
            )
        return absent if value is None else value

    def required(self, name: str) -> Any:
        """Return the value of ``name``.

        Raises:
            ConfigError: the option is not given.
        """
        value = self(name)
        if value is None:
            raise ConfigError(f"{self.spelled(name)}: required, but not given — add it")
        return value

    def size(self, name: str) -> int:
        """Return the value of ``name``, an integer of at least 1.

        Raises:
            ConfigError: the option is not given, or is below 1.
        """
        value = int(self.required(name))
        if value < 1:
            raise ConfigError(f"{self.spelled(name)}: {value}, expected at least 1 — correct it")
        return value

    def spelled(self, name: str) -> str:
        """Return the option with the dest ``name`` as typed on the command line, such as --num-layers."""
        return self._spelled.get(name, name)

    def is_given(self, name: str) -> bool:
        """Return whether a value is given for ``name``."""
        self._read.add(name)
        return self.given.get(name) is not None

    @property
    def read(self) -> frozenset[str]:
        """Names of the options that the recipe has read."""
        return frozenset(self._read)

    def notes(self) -> list[str]:
        """Return a note for each reason why given options have no effect."""
        ignored: dict[str, list[str]] = {}
        for name, value in sorted(self.given.items()):
            if name in self._ignored and name not in self._read and value != self._defaults.get(name):
                ignored.setdefault(self._ignored[name], []).append(name)
        return [f"{', '.join(names)}: no effect, because {reason}" for reason, names in ignored.items()]

    def _unsupported(self) -> list[str]:
        """Return a problem for each given option that the native trainer does not support."""
        return sorted(
            f"{self.spelled(name)}: {value!r}, expected {self._defaults.get(name)!r} — the native trainer does "
            "not support it; leave it out, or run upstream's own code"
            for name, value in self.given.items()
            if name not in self._read
            and name not in self._ignored
            and value is not None
            and value != self._defaults.get(name)
        )


@cache
def _strings_of(module: str) -> frozenset[str]:
    """Return the strings in the source of a module, which include the names of the options that it reads."""
    tree = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    return frozenset(node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str))
