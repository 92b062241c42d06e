"""Facts about a run, read from its run directory or log."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_adapt import bounded_yaml, regular_files
from ascend_adapt.diagnosis import explaining, status_report
from ascend_adapt.emulation import finding
from ascend_adapt.errors import AdaptError, LaunchError, SettingsError, one_line
from ascend_adapt.launch.one_host.processes import code_name
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.report import layout as layouts
from ascend_adapt.report.curves import Curve, chosen
from ascend_adapt.report.layout import Layout
from ascend_adapt.report.logs import MetricsFile, ProgramLog

RUNNING, FINISHED, FAILED, UNKNOWN = "running", "finished", "failed", "state unknown"
_SECRET = re.compile(r"(?i)(?:^|[_.-])(?:api_?key|token|secret|passw(?:or)?d|credentials?)$")
_TIERS = {"npu": "hardware", "cuda": "cuda", "cpu": "cpu"}
_KERNEL = re.compile(r"kernel (\S+) of (.*)", re.S)


@dataclass(frozen=True)
class KernelChoice:
    """Backend of a kernel for one kind of call. ``compared`` is the reference with which it agreed, or ""."""

    kernel: str
    backend: str
    call: str
    compared: str = ""


@dataclass(frozen=True)
class Finding:
    """A finding of a rehearsal: what to change, and where."""

    place: str
    what: str
    instead: str


@dataclass(frozen=True)
class Problem:
    """An error in a run, with its place (such as ``rank-0.log:120``, or the rank), its cause and the next step."""

    place: str
    text: str
    cause: str = ""
    next_step: str = ""
    details: str = ""


@dataclass
class Run:
    """One run.

    Attributes:
        name: the path as the user typed it.
        state: RUNNING, FINISHED, FAILED or UNKNOWN; ``outcome`` explains the state.
        tier: evidence tier of the device on which the run ran, or "" if unknown.
        seconds: time from the first rank's start to the last rank's end, or to now; None if unknown.
        hosts: host of each rank.
        settings: the configuration, flattened, with secrets masked.
        versions: versions of the packages that the ranks have in common.
        known_problems: lines of a rehearsal about known problems of the job on an NPU.
        failure: which rank failed first, why, and the next step.
        notes: which files could not be read, and where the curves come from.
    """

    name: str
    state: str = UNKNOWN
    outcome: str = ""
    tier: str = ""
    device: str = ""
    seconds: float | None = None
    curves: list[Curve] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    layout: Layout | None = None
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    patches: status_report.Report | None = None
    kernels: list[KernelChoice] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    known_problems: list[str] = field(default_factory=list)
    failure: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcome of each patch, by name."""
        return self.patches.outcomes if self.patches is not None else ()


class RunReader:
    """Reads a run, repeatedly while it is running. Of logs, only appended lines are read again."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, a run directory or the log of any job.

        Raises:
            SettingsError: the path is neither.
        """
        if not path.exists():
            raise SettingsError(f"{path}: not found, expected a run directory or a log — correct the path")
        self._path = path
        self._logs: dict[Path, ProgramLog] = {}
        self._rows = [MetricsFile(path / name) for name in ("metrics.jsonl", "evaluations.jsonl")]
        if path.is_dir() and not any(_is_of_a_run(path)):
            raise SettingsError(
                f"{path}: has no job.json, rank-*.log, adapt-status.*.json or metrics.jsonl, expected a run directory "
                "— pass the one that ascend-run printed, or a log"
            )

    def read(self) -> Run:
        """Return the current state of the run."""
        run = Run(str(self._path))
        if self._path.is_dir():
            _read_job(self._path, run)
            _read_status(self._path, run)
            _read_kernels(self._path, run)
            _read_findings(self._path, run)
        self._read_logs(run)
        self._read_settings(run)
        if run.state != RUNNING:
            _read_problems(self._path, run)
        return run

    def _read_logs(self, run: Run) -> None:
        failed: list[str] = []
        rows = [one for one in self._rows if one.path.exists()]
        for path in sorted(self._path.glob("rank-*.log")) if self._path.is_dir() else [self._path]:
            self._logs.setdefault(path, ProgramLog(path))
        for file in (*rows, *self._logs.values()):
            try:
                file.read()
            except OSError as error:
                failed.append(f"{file.path}: {error.strerror}, so its curves are missing")
        run.curves = chosen(one.metrics for one in rows) or chosen(one.metrics for one in self._logs.values())
        run.notes += failed
        if not run.curves:
            run.notes.append(
                "no line in a known format has a step and its loss, so the report has no curves; if the output went "
                "elsewhere, pass that log in place of the run directory"
            )

    def _read_settings(self, run: Run) -> None:
        arguments: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for log in self._logs.values():
            arguments, sizes = arguments or log.arguments, sizes or log.sizes
        config = _config(self._path / "config.yaml", run)
        run.settings |= _without_secrets(dict(_flat("", config)) if config else arguments)
        ranks = len(run.hosts) or sizes.get("world", 0)
        run.layout = layouts.of_native(config) or layouts.of_program(arguments, sizes, ranks)


def _is_of_a_run(folder: Path) -> Iterator[Path]:
    for pattern in ("job.json", "rank-*.log", "adapt-status.*.json", "metrics.jsonl"):
        yield from folder.glob(pattern)


def _read_job(folder: Path, run: Run) -> None:
    try:
        job, data = Job.read(RunDirectory(folder))
    except LaunchError as error:
        run.outcome = str(error)
        return
    code = data.get("exit_code")
    if code is not None:
        run.state, run.outcome = (FAILED, code_name(code)) if code else (FINISHED, f"exit code {code}")
        if data.get("restarts"):
            run.outcome += f", restarts: {data['restarts']}"
    elif job.is_alive():
        run.state = RUNNING
    else:
        run.outcome = (
            f"no process of the job is on this host, and no exit code was recorded; it was started on {job.host}"
        )
    if isinstance(command := data.get("command"), list):
        run.settings["command"] = shlex.join(_masked(map(str, command)))


def _read_status(folder: Path, run: Run) -> None:
    """Read patches, versions, hosts and times from the status file of each rank, or of each program without ranks."""
    try:
        run.patches = status_report.of_run(folder)
    except AdaptError as error:
        run.notes.append(str(error))
        return
    run.failure = run.patches.failure
    records = status_report.records(folder)
    run.hosts = {data["rank"]: str(data.get("host", "")) for data in records if data["rank"] is not None}
    times = [data[name] for data in records for name in ("since", "until") if data.get(name) is not None]
    first: Mapping[str, Any] = records[0] if records else {}
    end = time.time() if run.state == RUNNING else max(times, default=0.0)
    run.seconds = end - min(times) if times else None
    facts = {name: str(value) for part in (first.get("facts") or {}).values() for name, value in part.items()}
    if device := first.get("device"):
        run.device = f"{device} ({first.get('device_reason', '')})"
        run.tier = "emulated" if "emulated" in str(first.get("device_reason")) else _TIERS.get(device, "")
    run.versions = {
        name: value
        for name, value in sorted(facts.items())
        if value != "not installed" and not name.startswith(("patch ", "kernel ", "device"))
    }
    run.kernels = [
        KernelChoice(match[1], backend, match[2])
        for name, backend in facts.items()
        if (match := _KERNEL.fullmatch(name))
    ]


def _read_kernels(folder: Path, run: Run) -> None:
    recorded = [_json(path) for path in sorted(folder.glob("kernel-choices/*.json"))]
    choices = [
        KernelChoice(*(str(one.get(key, "")) for key in ("kernel", "backend", "call", "compared with")))
        for one in recorded
        if "kernel" in one and "backend" in one
    ]
    run.kernels = sorted(choices or run.kernels, key=lambda one: (one.kernel, one.backend, one.call))


def _read_findings(folder: Path, run: Run) -> None:
    data = _json(folder / "rehearsal.json")
    try:
        processes = [*(data.get("ranks") or {}).values(), *(data.get("programs") or {}).values()]
        merged = finding.merged(processes)
    except (TypeError, KeyError, AttributeError) as error:
        run.notes.append(f"{folder / 'rehearsal.json'}: is not a rehearsal report ({one_line(error)}) — remove it")
        return
    run.findings = [Finding(one.place, one.text(), one.instead) for one in merged]
    run.known_problems = list(map(str, data.get("known_problems") or ()))


def _time_of_failure(data: Mapping[str, Any]) -> int:
    """Return the wall clock's time of a failure record, 0 if it has none."""
    at = data.get("at")
    time_ns = at.get("wall_ns") if isinstance(at, dict) else None
    return time_ns if isinstance(time_ns, int) else 0


def _read_problems(path: Path, run: Run) -> None:
    """Read the failure records of ranks, and the known problems and last exceptions in the logs."""
    if path.is_dir():
        recorded = [_json(record) for record in path.glob("failures/*.json")]
        for data in sorted(recorded, key=_time_of_failure):
            place = f"rank {data.get('rank', '?')} on {data.get('host', '?')}"
            run.problems.append(Problem(place, str(data.get("error", "")), details=str(data.get("traceback", ""))))
        if run.state == FINISHED and not run.problems:
            return
    try:
        reports, faults = explaining.explain([path], os.environ)
    except SettingsError:  # the run directory has no log
        return
    run.notes += faults
    of_ranks, run.problems = run.problems, []
    for report in reports:
        file = Path(report.file).name
        for one in report.found:
            frames = "\n".join(map(str, one.frames))
            run.problems.append(Problem(f"{file}:{one.line}", one.shown_by[0], one.cause, one.do, frames))
        if report.last_exception:
            number, _, text = report.last_exception[0].partition(": ")
            run.problems.append(Problem(f"{file}:{number}", text, details="\n".join(report.last_exception[1:])))
    # A rank's failure record repeats the exception in its log.
    logged = {one.text for one in run.problems}
    run.problems = [*(one for one in of_ranks if one.text not in logged), *run.problems]


def _config(path: Path, run: Run) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = bounded_yaml.load(regular_files.read_text(path))
    except (OSError, ValueError) as error:
        run.notes.append(f"{path}: cannot be read ({one_line(error)}), so the settings are missing")
        return {}
    return config if isinstance(config, dict) else {}


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value, default=str)


def _without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: "***" if value and _is_secret(name) else value for name, value in settings.items()}


def _masked(words: Iterable[str]) -> Iterator[str]:
    """Yield the arguments of a command, with *** for the values of options whose names look secret."""
    is_secret = False
    for word in words:
        name, equals, _ = word.partition("=")
        yield (
            "***" if is_secret and not word.startswith("-") else f"{name}=***" if equals and _is_secret(name) else word
        )
        is_secret = not equals and word.startswith("-") and _is_secret(name)


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {}, because a running or killed job leaves incomplete files."""
    try:
        data = json.loads(regular_files.read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
