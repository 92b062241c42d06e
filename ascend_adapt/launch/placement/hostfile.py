"""Reads DeepSpeed's hostfile, and applies include and exclude filters, which select the hosts and slots of a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError
from ascend_adapt.whole_numbers import whole_number

# ssh would read a name that begins with a dash as an option; `,`, `[`, `^` and `/` have a special meaning for pdsh.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*"
_LINE = re.compile(rf"(?P<address>(?:{_NAME}@)?{_NAME})\s+(?P<word>slots?)=(?P<slots>[0-9]+)")
_MOST_SLOTS = 4096
_MOST_CHARACTERS = 1 << 24
_EXPECTED = f"expected `name slots=N` with N from 1 to {_MOST_SLOTS}"


@dataclass(frozen=True)
class Host:
    """One host: its ``address`` for ssh (``name`` or ``user@name``) and its slot numbers.

    ``narrowed`` is true if a filter selected some of the slots.
    """

    address: str
    slots: tuple[int, ...]
    narrowed: bool = False

    @property
    def name(self) -> str:
        """The name by which other hosts reach this host."""
        return self.address.rpartition("@")[2]


def read(path: Path, warn: Callable[[str], None]) -> tuple[Host, ...]:
    """Return the hosts of a hostfile, in the order of its lines.

    Raises:
        LaunchError: the file cannot be read, is empty, or has a malformed or duplicate line.
    """
    try:
        with regular_files.open_text(path, encoding="utf-8-sig") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise LaunchError(
            f"hostfile {path}: {error.strerror}, expected a readable file — correct --hostfile"
        ) from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"hostfile {path}: is not text ({error.reason}) — use DeepSpeed's format") from error
    if len(text) > _MOST_CHARACTERS:
        raise LaunchError(f"hostfile {path}: has more than {_MOST_CHARACTERS} characters — use DeepSpeed's format")
    return parse(text, str(path), warn)


def parse(text: str, name: str, warn: Callable[[str], None]) -> tuple[Host, ...]:
    """Return the hosts in a hostfile's text; ``name`` is the name of the hostfile in errors."""
    hosts: dict[str, Host] = {}
    warned = False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        found = _LINE.fullmatch(words)
        where = f"hostfile {name}: line {number} is {line.strip()!r}"
        # Count digits first, because int() rejects very long numbers.
        if found is None or len(found["slots"]) > 9 or not 1 <= int(found["slots"]) <= _MOST_SLOTS:
            raise LaunchError(f"{where}, {_EXPECTED} — correct it")
        if found["word"] == "slot" and not warned:
            warn(f"{where}, read as slots={found['slots']}")
            warned = True
        host = Host(_without_dot(found["address"]), tuple(range(int(found["slots"]))))
        # Host names are case-insensitive.
        if host.name.lower() in hosts:
            raise LaunchError(f"{where}, but {host.name} already has a line — remove one of them")
        hosts[host.name.lower()] = host
    if not hosts:
        raise LaunchError(f"hostfile {name}: lists no host, {_EXPECTED} — add one, or leave --hostfile out")
    return tuple(hosts.values())


def _without_dot(address: str) -> str:
    """Remove the trailing dot of an absolute name: /etc/hosts and ssh's configuration have names without it."""
    return address.rstrip(".")


def select(hosts: Sequence[Host], include: str | None, exclude: str | None) -> tuple[Host, ...]:
    """Return the ``hosts`` and slots that DeepSpeed's filters (``host:0,2@host2``) select, in the same order.

    Raises:
        LaunchError: both filters are given, a filter is malformed or names unknown hosts or slots, or no slot is left.
    """
    if include and exclude:
        raise LaunchError("--include and --exclude: both are given, expected one — leave one of them out")
    if include:
        chosen = _read_filter("--include", include, hosts)
        left = [_keep(host, chosen[host.name]) for host in hosts if host.name in chosen]
    elif exclude:
        chosen = _read_filter("--exclude", exclude, hosts)
        left = [_keep(host, set(host.slots) - chosen.get(host.name, set())) for host in hosts]
    else:
        return tuple(hosts)
    left = [host for host in left if host.slots]
    if not left:
        raise LaunchError(f"--exclude {exclude}: leaves no slot of {len(hosts)} hosts — exclude less")
    return tuple(left)


def _keep(host: Host, slots: set[int]) -> Host:
    return host if slots == set(host.slots) else replace(host, slots=tuple(sorted(slots)), narrowed=True)


def _read_filter(option: str, text: str, hosts: Sequence[Host]) -> dict[str, set[int]]:
    known = {**{host.name: host for host in hosts}, **{host.address: host for host in hosts}}
    chosen: dict[str, set[int]] = {}
    for part in _parts(text, known):
        address, colon, numbers = part.rpartition(":") if ":" in part else (part, "", "")
        host = known.get(_without_dot(address))
        if host is None:
            raise LaunchError(f"{option} {text}: {address!r} is not one of the hosts — {_some(known)}")
        slots = _numbers(numbers, f"{option} {text}") if colon else set(host.slots)
        beyond = sorted(slots - set(host.slots))
        if beyond:
            raise LaunchError(
                f"{option} {text}: {address} has no slot {beyond[0]}, expected 0 to {len(host.slots) - 1}"
            )
        chosen.setdefault(host.name, set()).update(slots)
    return chosen


def _parts(text: str, known: Iterable[str]) -> list[str]:
    """Split a filter at each ``@`` that does not belong to a ``user@host`` of the hostfile."""
    parts: list[str] = []
    for word in text.split("@"):
        if parts and f"{parts[-1]}@{word.partition(':')[0]}" in known:
            parts[-1] += f"@{word}"
        else:
            parts.append(word)
    return [part.strip() for part in parts]


def _numbers(text: str, where: str) -> set[int]:
    slots = {whole_number(word) for word in text.split(",")}
    if None in slots:
        raise LaunchError(
            f"{where}: {text!r} is not a list of slots, expected numbers as in host:0,2@host2 — correct it"
        )
    return {slot for slot in slots if slot is not None}


def _some(known: Iterable[str]) -> str:
    names = sorted(known)
    return "choose from " + ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
