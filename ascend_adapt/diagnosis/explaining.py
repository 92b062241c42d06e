"""`ascend-adapt explain`: finds known problems and error codes in the logs of a failed job of any launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ascend_adapt import terminal
from ascend_adapt.diagnosis.collect import without_secrets
from ascend_adapt.errors import SettingsError
from ascend_adapt.problems import error_codes, explanation, facts, known, log_text
from ascend_adapt.problems.error_codes import ErrorCode
from ascend_adapt.problems.explanation import Found
from ascend_adapt.problems.log_text import LogText


@dataclass(frozen=True)
class LogReport:
    """Report of one log.

    ``last_exception`` has the line and frames of the last exception, if no known problem matches. ``is_empty``: whether
    the log contains only white space.
    """

    file: str
    found: tuple[Found, ...]
    codes: tuple[ErrorCode, ...]
    last_exception: tuple[str, ...] = ()
    is_empty: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "file": self.file,
            "problems": [one.to_json() for one in self.found],
            "codes": [asdict(one) for one in self.codes],
            "last_exception": list(self.last_exception),
            "is_empty": self.is_empty,
        }


def explain(paths: Sequence[Path], environ: Mapping[str, str]) -> tuple[list[LogReport], list[str]]:
    """Return a report of each log, and plugin errors.

    In a folder, the logs of ranks are read, or all ``*.log`` files if there are none. ``-`` stands for standard input.
    Passwords and tokens are removed from the lines of a log, because reports are shared.

    Raises:
        SettingsError: a log cannot be read, or a folder has no logs.
    """
    problems, faults = known.problems(environ)
    reports = []
    for file in (one for path in paths for one in _logs(path)):
        log = log_text.read(file)
        found = [_without_secrets(one) for one in explanation.explain(log, problems, facts.of_text(log.text))]
        unknown = () if found else _last_exception(log)
        reports.append(
            LogReport(str(file), tuple(found), tuple(error_codes.codes_in(log)), unknown, not log.text.strip())
        )
    return reports, faults


def _without_secrets(found: Found) -> Found:
    return replace(
        found,
        cause=without_secrets(found.cause),
        shown_by=tuple(map(without_secrets, found.shown_by)),
        frames=tuple(replace(one, code=without_secrets(one.code)) for one in found.frames),
    )


def _last_exception(log: LogText) -> tuple[str, ...]:
    index = log.last_exception()
    if index is None:
        return ()
    frames = explanation.last_frames(log.frames(index))
    shown = (f"{log.number(index)}: {log.lines[index].strip()}", *map(str, frames))
    return tuple(map(without_secrets, shown))


def _logs(path: Path) -> list[Path]:
    if not path.is_dir():
        return [Path("/dev/stdin") if str(path) == "-" else path]
    logs = sorted(path.glob("rank-*.log")) or sorted(one for one in path.rglob("*.log") if one.is_file())
    if not logs:
        raise SettingsError(f"{path}: has no *.log, expected the log of a job or a folder of logs — pass a file")
    return logs


def show(reports: Sequence[LogReport]) -> None:
    """Print each problem once, with the logs and lines that show it, and then the error codes."""
    by_problem: dict[str, list[tuple[str, Found]]] = {}
    for report in reports:
        for one in report.found:
            by_problem.setdefault(one.problem.name, []).append((report.file, one))
    for number, places in enumerate(by_problem.values()):
        if number:
            print()
        file, first = places[0]
        terminal.line(f"{first.problem.name}: {first.cause}")
        for other, one in places[:8]:
            more = f" (and {one.count - 1} more lines)" if one.count > 1 else ""
            terminal.line(f"  {other}:{one.line}: {one.shown_by[0]}{more}")
        if len(places) > 8:
            terminal.line(f"  and {len(places) - 8} more logs")
        for frame in first.frames:
            terminal.line(f"  {'raised' if frame is first.frames[0] else 'called from'}: {frame}")
        terminal.line(f"  next step: {first.do}", "bold")
        terminal.line(f"  {', '.join(first.problem.source[:3])} (evidence: {first.problem.evidence})")
    codes = {one.code: (report.file, one) for report in reversed(reports) for one in reversed(report.codes)}
    if codes:
        terminal.line(("\n" if by_problem else "") + "error codes:")
        for file, code in codes.values():
            terminal.line(f"  {code.code}: {code.meaning or 'unknown code'} ({file}:{code.line})")
        terminal.line(f"  {error_codes.DEVICE_LOG}")
    if not by_problem and not codes:
        terminal.line(f"no known problem in {len(reports)} log{'s' if len(reports) > 1 else ''}")
        for report in reports:
            if report.is_empty:
                terminal.line(f"  {report.file}: is empty")
            for text, word in zip(report.last_exception, ("last exception", "raised", "called from"), strict=False):
                terminal.line(f"  {word}: {f'{report.file}:' if word == 'last exception' else ''}{text}")
