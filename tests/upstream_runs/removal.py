"""What each patch is for: jobs of unmodified code bases once more, each time without one of the patches applied there.

    python tests/upstream_runs/removal.py hugging_face --seen runs/removal.jsonl --write docs/upstreams/hugging-face.md
    python tests/upstream_runs/removal.py megatron_core megatron_lm --device cpu --device npu-emulated --seen FILE

A patch is disabled in the first job in which a rank reports it as applied, then of the next one, until its absence
shows. Every run is added to the file of --seen, and runs in it are not repeated: an interrupted command continues.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import marked_page
import records
import upstream_job
from code_bases import NotHere
from records import Record
from upstream_job import DEVICES, Place, UpstreamJob

from ascend_adapt.runtime.plugin_manager import PluginManager

MAKER = "make upstream-removals"
HEAD = "| patch | declared | job | without it |\n|---|---|---|---|\n"
DTYPE = "float32"
# Of another order of operations, in fp32.
ROUNDING = 1e-5
# Of the complete job, its imports included: less is the noise of a machine that does other things as well.
SLOWER = 2.0


@dataclass(frozen=True)
class Effect:
    """What a job became without a patch; ``shows`` is whether anybody would notice."""

    shows: bool
    text: str


def effect(whole: Record, without: Record) -> Effect:
    """Return what the absence of a patch did; a job on one device has the same losses each time."""
    if without.code:
        return Effect(True, f"`{_one_line(without.reported)}`")
    if len(whole.losses) != len(without.losses):
        # A shell script may end with 0 whatever its training did.
        return Effect(
            True, f"{len(without.losses)} losses instead of {len(whole.losses)}: `{_one_line(without.reported)}`"
        )
    far = upstream_job.apart(whole.losses, without.losses)
    if far > ROUNDING:
        pairs = zip(without.losses, whole.losses, strict=True)
        step, (other, loss) = max(
            enumerate(pairs, 1), key=lambda one: abs(one[1][0] - one[1][1]) / max(abs(one[1][1]), 1e-12)
        )
        return Effect(True, f"other numbers: loss {step} is {other:.7g} instead of {loss:.7g}")
    if worse := sorted(set(without.problems) - set(whole.problems)):
        return Effect(True, _one_line(worse[0]))
    if without.seconds > SLOWER * whole.seconds:
        return Effect(True, f"slower: {without.seconds:.0f} s instead of {whole.seconds:.0f} s")
    return Effect(False, f"losses {far:.0e} apart" if far else "the same losses, every digit")


def _one_line(reported: str) -> str:
    """Return the message for a table cell, without the folders of this host."""
    plain = re.sub(r"\x1b\[[0-9;]*m|(/[\w.+-]+){2,}/|^\[?rank\d+\]?: | \(exit code \d+\); its log:.*", "", reported)
    plain = plain.replace("|", "\\|").replace("`", "'")
    return " ".join(plain.split())[:220]


@dataclass
class Removal:
    """Runs complete jobs, and then without each patch; ``limit`` is how many runs it may still make."""

    seen: Path
    folder: Path
    limit: float = float("inf")
    have: dict[tuple[str, str, tuple[str, ...]], Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in records.read(self.seen):
            if record.adapted and record.dtype == DTYPE:
                self.have.setdefault((record.job, record.device, record.without), record)

    def run(self, name: str, job: UpstreamJob, device: str, without: tuple[str, ...] = ()) -> Record | None:
        """Return the record of a run, made now if it was never made; None: the limit is reached."""
        key = (f"{name}:{job.name}", device, without)
        if key not in self.have and self.limit > 0:
            self.limit -= 1
            checkout = job.checkout(os.environ)
            shared = self.folder / name / "shared"
            shared.mkdir(parents=True, exist_ok=True)
            # Its own: another run's status in the same run directory would be taken for its.
            folder = self.folder / name / job.name / f"{device}-without-{'-'.join(without) or 'nothing'}"
            shutil.rmtree(folder, ignore_errors=True)
            place = Place(folder, shared, checkout or shared, device, DTYPE)
            begin = time.monotonic()
            ended = upstream_job.run(job, place, disable=without)
            took = time.monotonic() - begin
            record = Record.of(key[0], place, ended, without=without, adapted=True, seconds=took)
            records.append(self.seen, record)
            print(f"{key[0]} {device} without {', '.join(without) or 'nothing'}: code {ended.code}, {took:.0f} s")
            sys.stdout.flush()
            self.have[key] = record
        return self.have.get(key)


def uses(
    wholes: Iterable[Record], devices: Sequence[str], for_devices: dict[str, tuple[str, ...]], tries: int
) -> dict[str, list[list[Record]]]:
    """Return, for each patch that was applied, groups of complete jobs to take it out of until it shows.

    A patch for some devices has a group for each of them, as they may need it for different things; any other has one.
    In a group are at most ``tries`` jobs of each device, in the order of ``wholes``.
    """
    found: dict[str, dict[str, list[Record]]] = {}
    for record in sorted(wholes, key=lambda one: devices.index(one.device)):
        for patch in record.applied:
            group = found.setdefault(patch, {}).setdefault(record.device if for_devices.get(patch) else "any", [])
            if sum(one.device == record.device for one in group) < tries:
                group.append(record)
    return {patch: list(groups.values()) for patch, groups in sorted(found.items())}


def rows(
    removal: Removal, chosen: Sequence[tuple[str, UpstreamJob]], found: dict[str, list[list[Record]]]
) -> Iterator[tuple[str, Record | None, Effect]]:
    """Yield a patch, the job it was taken out of and what came of it; no job: its runs are not made yet."""
    by_name = {f"{name}:{job.name}": (name, job) for name, job in chosen}
    for patch, group in ((patch, group) for patch, groups in found.items() for group in groups):
        reported: list[tuple[Record, Effect]] = []
        # What was made already, in whichever job, may spare a run.
        for whole in sorted(group, key=lambda one: (one.job, one.device, (patch,)) not in removal.have):
            name, job = by_name[whole.job]
            without = removal.run(name, job, whole.device, (patch,))
            if without is None:
                break
            reported.append((whole, effect(whole, without)))
            if reported[-1][1].shows:
                break
        if not reported:
            yield patch, None, Effect(False, "not run")
        elif reported[-1][1].shows:
            yield patch, *reported[-1]
        else:
            others = f"; so in {len(reported) - 1} more" if len(reported) > 1 else ""
            yield patch, reported[0][0], Effect(False, reported[0][1].text + others)


def table(found: Iterable[tuple[str, Record | None, Effect]], declared: dict[str, str]) -> str:
    """Return the rows as a table of Markdown."""
    lines = []
    for patch, whole, seen in found:
        where = f"{whole.job.partition(':')[2]}, {whole.device}" if whole else ""
        lines.append(f"| `{patch}` | {declared.get(patch, '')} | {where} | {seen.text} |\n")
    return HEAD + "".join(lines)


def main() -> int:
    """Run what is asked for, and report or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="CODE_BASE[:JOB]", help=f"of {', '.join(upstream_job.names())}")
    parser.add_argument("--device", action="append", choices=DEVICES, help="repeatable; the first is tried first")
    parser.add_argument("--seen", type=Path, required=True, metavar="FILE", help="records of runs, read and added to")
    parser.add_argument("--plugin", action="append", help="repeatable; only patches of these plugins, default all")
    parser.add_argument("--tries", type=int, default=3, help="in how many jobs a patch is looked for an effect")
    parser.add_argument(
        "--at-most", type=int, default=None, metavar="RUNS", help="stop after so many; then the code is 1"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs and run directories there")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    parser.add_argument("--table", default="", metavar="NAME", help="which of the page's tables, if it has several")
    known = parser.parse_args()
    try:
        chosen = upstream_job.chosen(known.jobs)
    except upstream_job.NoSuchJob as error:
        parser.error(str(error))
    devices = known.device or ["cpu"]
    known.seen.parent.mkdir(parents=True, exist_ok=True)
    patches = {f"{one.plugin}.{one.patch.name}": one.patch for one in PluginManager().patches()}
    for_devices = {name: tuple(patch.devices or ()) for name, patch in patches.items()}
    with tempfile.TemporaryDirectory() as scratch:
        limit = float("inf") if known.at_most is None else known.at_most
        removal = Removal(known.seen, (known.keep or Path(scratch)).absolute(), limit)
        wholes = [record for record in (complete_job(removal, *one) for one in _product(chosen, devices)) if record]
        found = uses(wholes, devices, for_devices, known.tries)
        if known.plugin:
            found = {patch: groups for patch, groups in found.items() if patch.partition(".")[0] in known.plugin}
        made = list(rows(removal, chosen, found))
    reported = table(made, {name: patch.without for name, patch in patches.items()})
    if known.write is None:
        print(reported)
    else:
        try:
            marked_page.put(known.write, reported, MAKER, known.table)
        except marked_page.NoMarks as error:
            parser.error(str(error))
    nothing = [patch for patch, _, seen in made if not seen.shows]
    print(f"{len(made)} rows; nothing shows without {', '.join(nothing) or 'none'}")
    return int(removal.limit <= 0)


def _product(
    chosen: Sequence[tuple[str, UpstreamJob]], devices: Sequence[str]
) -> Iterator[tuple[str, UpstreamJob, str]]:
    return ((name, job, device) for device in devices for name, job in chosen if job.is_for(device, DTYPE))


def complete_job(removal: Removal, name: str, job: UpstreamJob, device: str) -> Record | None:
    """Return the record of a complete job, or None if there is none to compare with, which is reported."""
    try:
        record = removal.run(name, job, device)
    except NotHere as error:
        print(f"not checked: {name}:{job.name}: {error}", flush=True)
        return None
    if record is not None and record.problems:
        print(f"not checked: {name}:{job.name} on {device}: the complete job has {record.problems[0]}", flush=True)
        return None
    return record


if __name__ == "__main__":
    sys.exit(main())
