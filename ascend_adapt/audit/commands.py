"""`ascend-adapt audit`: reports what another patcher changes."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_adapt.errors import SettingsError

if TYPE_CHECKING:
    from ascend_adapt.audit.reading import Reading
    from ascend_adapt.audit.running import Seen
    from ascend_adapt.audit.sites import Site

_ROWS = 20


def add_audit(commands: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers ``commands``."""
    audit: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="list what another package patches: recorded as it runs, or read from its source",
        usage="ascend-adapt audit [options] -- COMMAND ...\n       ascend-adapt audit [options] --static DIR",
    )
    audit.add_argument("words", nargs="*", metavar="COMMAND", help="run this command and record what is patched")
    audit.add_argument("--static", type=Path, metavar="DIR", help="read the patcher's source instead; nothing is run")
    audit.add_argument(
        "--upstream",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="with --static: a source tree of the patched package, searched before the installed packages; repeatable",
    )
    audit.add_argument("--all", action="store_true", help=f"every row, instead of the first {_ROWS} of each group")
    audit.add_argument("--json", action="store_true", help="print JSON")
    audit.set_defaults(run=run)
    return audit


def run(known: argparse.Namespace) -> int:
    """Audit by running a command or reading a source, and return the exit code."""
    if bool(known.words) == (known.static is not None):
        raise SettingsError("COMMAND, --static: neither or both given, expected one — pass -- COMMAND, or --static DIR")
    if known.upstream and known.static is None:
        raise SettingsError("--upstream: given without --static, expected both — leave it out, or add --static DIR")
    if known.static is not None:
        from ascend_adapt.audit import reading

        read = reading.read(known.static, known.upstream)
        found: Any = read.to_json()
        lines = _of_source(read)
    else:
        from ascend_adapt.audit import running

        seen = running.run(known.words, os.environ)
        found = seen.to_json()
        lines = _of_run(seen)
    if known.json:
        print(json.dumps(found, indent=1))
    else:
        for line in _shortened(lines, None if known.all else _ROWS):
            print(line)
    return 0


def _of_source(read: Reading) -> list[tuple[str, list[str]]]:
    counts = ", ".join(f"{count} {state}" for state, count in sorted(read.counts().items())) or "none"

    def place(site: Site) -> str:
        return f"{site.file.relative_to(read.folder)}:{site.line}"

    groups: list[tuple[str, list[str]]] = [(f"{read.folder}: {len(read.judged)} patch sites: {counts}", [])]
    for state, title in (
        ("missing", "the target does not exist"),
        ("added", "adds a name that did not exist, with no effect unless the patcher itself uses it"),
        ("set to None", "a function or class set to None"),
        ("signature differs", "the replacement does not accept a call that the original accepts"),
    ):
        found = [one for one in read.judged if one.state == state]
        groups.append((title, [f"{place(one.site)}: {one.site.target}: {one.reason}" for one in found]))
    several = [f"{target}: {', '.join(map(place, sites))}" for target, sites in read.several.items()]
    groups.append(("assigned several values; import order or settings determine which value remains", several))
    unknown = Counter(one.reason for one in read.judged if one.state == "unknown")
    groups.append(("not judged", [f"{count}: {reason}" for reason, count in unknown.most_common()]))
    return [*groups, ("not read", list(read.problems))]


def _of_run(seen: Seen) -> list[tuple[str, list[str]]]:
    counted = f"{_counted(seen.processes, 'Python process', 'es')}, {_counted(len(seen.changes), 'change', 's')}"
    title = f"{' '.join(seen.command)}: exit code {seen.exit_code}, {counted}"
    groups: list[tuple[str, list[str]]] = [(title, [])]
    for pair in dict.fromkeys(change.pair for change in seen.changes):
        of_pair = [change for change in seen.changes if change.pair == pair]
        counts = Counter(change.kind for change in of_pair)
        title = f"{pair[0]} changes {pair[1]}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
        groups.append((title, [f"{one.kind}: {one.target} = {one.new} ({one.at or one.by})" for one in of_pair]))
    several = [f"{target}: {', '.join(one.at or one.by for one in both)}" for target, both in seen.several.items()]
    groups.append(("changed more than once", several))
    groups.append(("stale references to the original", [f"{alias} (of {target})" for alias, target in seen.stale]))
    return [*groups, ("modules in sys.modules without a file", list(seen.fake))]


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"


def _shortened(groups: Iterable[tuple[str, Sequence[str]]], most: int | None) -> list[str]:
    """Return the lines of all groups that have rows, and of the first."""
    lines: list[str] = []
    for number, (title, rows) in enumerate(groups):
        if number and not rows:
            continue
        lines.append(title if not number or ": " in title else f"{title}: {len(rows)}")
        lines += [f"  {row}" for row in rows[:most]]
        if most is not None and len(rows) > most:
            lines.append(f"  and {len(rows) - most} more (--all)")
    return lines
