"""The cause of a failure: known problems in the last lines of a rank's log, or in its traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ascend_adapt.errors import AdaptError
from ascend_adapt.launch.one_host import failures
from ascend_adapt.launch.one_host.failures import Failure
from ascend_adapt.launch.one_host.run_directory import RunDirectory

if TYPE_CHECKING:
    from ascend_adapt.problems.log_text import LogText

LARGEST_LOG = 1 << 20
"""Bytes of each rank's log, from its end, that are searched for known problems."""
_LAST_LINES = 400
_MOST = 2


def of_failure(run_dir: RunDirectory, failure: Failure, since_ns: int, environ: Mapping[str, str]) -> str:
    """Return lines with cause and next step, "" if nothing is known.

    The ranks of a command have no logs here: the first one that recorded an exception is reported, with its cause.
    """
    # Loaded only now: most jobs do not fail.
    from ascend_adapt.problems import log_text

    try:
        if failure.rank is not None:
            log = run_dir.rank_log(failure.rank)
            return "\n".join(_explained(log_text.read(log, LARGEST_LOG), environ)) if log.is_file() else ""
        first = failures.first_recorded(run_dir, since_ns, None)
        if first is None:
            return ""
        head = f"rank {first.rank} on {first.host} failed first: {first.error}"
        return "\n".join([head, *_explained(log_text.LogText(first.traceback), environ)])
    except AdaptError as error:
        return f"the cause was not looked up: {error}"


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
