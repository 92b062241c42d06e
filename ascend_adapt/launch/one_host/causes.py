"""The cause of a rank's failure, by the known problems that the end of its log shows."""

from __future__ import annotations

from collections.abc import Mapping

from ascend_adapt.errors import AdaptError
from ascend_adapt.launch.one_host.run_directory import RunDirectory

_LARGEST = 1 << 20
_LAST_LINES = 400
_MOST = 2


def of_rank(run_dir: RunDirectory, rank: int | None, environ: Mapping[str, str]) -> str:
    """Return lines with cause and next step, "" if the end of the log shows no known problem or there is no log."""
    if rank is None or not run_dir.rank_log(rank).is_file():
        return ""
    # Loaded only now: most jobs do not fail.
    from ascend_adapt.problems import explanation, known, log_text
    from ascend_adapt.problems.facts import of_names

    try:
        problems, _ = known.problems(environ)
        log = log_text.read(run_dir.rank_log(rank), _LARGEST)
    except AdaptError as error:
        return f"the cause was not looked up: {error}"
    names = {name for problem in problems if problem.when for name in problem.when.distributions}
    facts = of_names(names, environ, environ.get("ASCEND_ADAPT_DEVICE", ""))
    found = explanation.explain(log, problems, facts)
    last = [one for one in found if one.line > log.number(len(log.lines)) - _LAST_LINES]
    specific = [one for one in last if not one.problem.general] or last
    return "\n".join(line for one in specific[:_MOST] for line in one.last_lines())
