"""Options of each version of a dialect, and the options given for one run.

``upstream/*.json`` are recorded facts: names, types, defaults and choices, read from upstream's own parsers by
tests/recipes/record_upstream_options.py.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ascend_adapt.errors import ConfigError

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


def choose_version(dialect: str, names: Collection[str], versions: Iterable[str], asked: str | None) -> Version:
    """Return the requested version, else the first of ``versions`` that knows all of ``names``.

    Raises:
        ConfigError: the version does not exist, or no version (or not the requested one) has an option.
    """
    known = [version(dialect, one) for one in versions]
    if asked is not None:
        matching = [one for one in known if one.name == asked]
        if not matching:
            raise ConfigError(
                f"--upstream-version: {asked!r}, expected one of {', '.join(one.name for one in known)} — choose one"
            )
        known = matching
    for one in known:
        if set(names) <= set(one.options):
            return one
    nearest = max(known, key=lambda one: len(set(names) & set(one.options)))
    raise _unknown(dialect, sorted(set(names) - set(nearest.options)), nearest, is_asked=asked is not None)


def _unknown(dialect: str, names: list[str], nearest: Version, *, is_asked: bool) -> ConfigError:
    first = names[0]
    close = difflib.get_close_matches(first, nearest.options, 1)
    elsewhere = [one.stem.partition("-")[2] for one in sorted(_RECORDED.glob(f"{dialect}-*.json"))]
    has_it = [one for one in elsewhere if one != nearest.name and first in version(dialect, one).options]
    if has_it:
        step = f"{', '.join(has_it)} {'has' if len(has_it) == 1 else 'have'} it"
        more = f"not all of the others: leave out what only {nearest.name} has"
        step += ": choose by --upstream-version" if is_asked else f", and {more}"
    elif close:
        step = f"did you mean {close[0]}?"
    else:
        step = "correct it or leave it out"
    return ConfigError(f"{', '.join(names)}: unknown to {dialect} ({nearest.source}) — {step}")


class Options:
    """The options of one run: given values, else the version's defaults. It records which options are read.

    A given option that the recipe does not read, that is not in ``ignored`` and that differs from its default would be
    ignored silently: ``refuse_the_rest`` makes it an error.
    """

    def __init__(self, of: Version, given: Mapping[str, Any], ignored: Mapping[str, str]):
        self.version = of
        self.given = dict(given)
        self._defaults = of.defaults
        self._ignored = {name: reason for reason, names in ignored.items() for name in names.split()}
        self._read: set[str] = set()

    def __call__(self, name: str, absent: Any = None) -> Any:
        """Return the value of ``name``; ``absent`` if the version has no such option, or its value is None.

        Raises:
            ConfigError: null is given for an option whose default is not None.
        """
        self._read.add(name)
        default = self._defaults.get(name)
        value = self.given.get(name, default)
        if value is None and default is not None:
            raise ConfigError(f"{name}: null, expected a value such as {default!r} — give one, or leave it out")
        return absent if value is None else value

    def required(self, name: str) -> Any:
        """Return the value of ``name``.

        Raises:
            ConfigError: it is not given.
        """
        value = self(name)
        if value is None:
            raise ConfigError(f"{name}: is not given, and has no default — add it")
        return value

    def size(self, name: str) -> int:
        """Return the value of ``name``, an integer of at least 1.

        Raises:
            ConfigError: it is not given, or below 1.
        """
        value = int(self.required(name))
        if value < 1:
            raise ConfigError(f"{name}: {value}, expected at least 1 — correct it")
        return value

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
        return [f"without effect, for {reason}: {', '.join(names)}" for reason, names in ignored.items()]

    def refuse_the_rest(self) -> None:
        """Check that no given option is one that the native trainer does not support.

        Raises:
            ConfigError: there is one; the message has its value and the only value that is possible.
        """
        for name, value in sorted(self.given.items()):
            default = self._defaults.get(name)
            if name in self._read or name in self._ignored or value == default or value is None:
                continue
            raise ConfigError(
                f"{name}: {value!r}, expected {default!r} — the native trainer does not support it; leave it out, or "
                "run upstream's own code"
            )
