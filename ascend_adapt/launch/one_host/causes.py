"""Looks up the cause of a failure: known problems that match the end of a rank's log, or its traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ascend_adapt.errors import AdaptError
from ascend_adapt.launch.one_host import failures
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.moment import Moment
from ascend_adapt.launch.one_host.run_directory import RunDirectory

if TYPE_CHECKING:
    from ascend_adapt.problems.log_text import LogText

LARGEST_LOG = 1 << 20
"""Number of bytes at the end of each rank's log that are searched for known problems."""
_LAST_LINES = 400
_MOST = 2


def of_failure(run_dir: RunDirectory, failure: Failure, since: Moment, environ: Mapping[str, str]) -> str:
    """Return lines with the cause and the next step, or "" if no known problem matches.

    The processes of a command have no logs here, so the first rank that recorded an exception is reported with its
    cause. If it started no ranks, the last exception that ended one of its processes is.
    """
    # Imported only here, because most jobs do not fail.
    from ascend_adapt.problems import log_text

    try:
        if failure.rank is not None:
            log = run_dir.rank_log(failure.rank)
            return "\n".join(_explained(log_text.read(log, LARGEST_LOG), environ)) if log.is_file() else ""
        first = failures.first_recorded(run_dir, since, None)
        if first is not None:
            head = f"rank {first.rank} on {first.host} failed first: {first.error}"
        elif (first := failures.last_without_a_rank(run_dir, since)) is not None:
            head = f"last exception: {first.error}"
        else:
            return ""
        return "\n".join([head, *_explained(log_text.LogText(first.traceback), environ)])
    except AdaptError as error:
        return f"the cause could not be looked up: {error}"


def _explained(log: LogText, environ: Mapping[str, str]) -> list[str]:
    from ascend_adapt.problems import explanation, known
    from ascend_adapt.problems.facts import of_names

    problems, _ = known.problems(environ)
    names = {name for problem in problems if problem.when for name in problem.when.distributions}
    facts = of_names(names, environ, environ.get("ASCEND_ADAPT_DEVICE", ""))
    found = explanation.explain(log, problems, facts)
    last = [one for one in found if one.line > log.number(len(log.lines)) - _LAST_LINES]
    specific = [one for one in last if not one.problem.general] or last
    return [line for one in specific[:_MOST] for line in one.last_lines()]
