"""Contradictions between variables and settings of one job, in its scripts or the shell that starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ascend_adapt.diagnosis.findings import Finding
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.reading import Place, Reading, Setting
from ascend_adapt.whole_numbers import whole_number

_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
_PROCESSES = re.compile("NPROC_PER_NODE|nproc_per_node|num_gpus")
_NUMBERS = re.compile(r"\d+(?:,\d+)*")


def of_a_job(facts: Facts) -> Iterator[Finding]:
    """Return the contradictions in the files of a job, or in its environment if no files are given."""
    environ = facts.environ or {}
    shell = tuple((name, value, Place("environment", 0, f"{name}={value}")) for name, value in environ.items())
    reading = facts.reading or Reading(environ=shell)
    yield from _more_processes_than_devices(reading, environ)
    yield from _another_megatron(reading, environ)


def _more_processes_than_devices(reading: Reading, environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, value, place in (*reading.environ, *reading.settings):
        visible = _nearest(_DEVICES, place, reading) or environ.get(_DEVICES, "")
        processes, count = whole_number(value) or 0, visible.count(",") + 1
        if _PROCESSES.fullmatch(name) and _NUMBERS.fullmatch(visible) and processes > count:
            yield Finding(
                f"{place}; {_DEVICES}={visible}",
                f"{processes} processes have {count} devices: the others fail with error code 107001",
                f"start {count} processes, or list {processes} devices",
                True,
            )


def _another_megatron(reading: Reading, environ: Mapping[str, str]) -> Iterator[Finding]:
    for name, value, place in reading.environ:
        megatron = PurePosixPath(value)
        path = _nearest("PYTHONPATH", place, reading) or environ.get("PYTHONPATH", "")
        others = [
            one for one in map(PurePosixPath, path.split(":")) if one.name == megatron.name and "$" not in str(one)
        ]
        if name == "MEGATRON_LM_PATH" and others and megatron not in others and "$" not in value:
            yield Finding(
                f"{place}; PYTHONPATH has {others[0]}",
                "the trainer and MindSpeed use two copies of Megatron-LM, or one of the folders does not exist",
                "write the same folder in both",
                False,
            )


def _nearest(name: str, place: Place, reading: Reading) -> str:
    """Return the value of a variable that is set in the same file, closest to a line."""

    def distance(one: Setting) -> int:
        return abs(one[2].line - place.line)

    there = [one for one in reading.environ if one[0] == name and one[2].file == place.file]
    return min(there, key=distance)[1] if there else ""
