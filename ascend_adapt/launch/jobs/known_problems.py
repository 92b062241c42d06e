"""Reports known problems of a rehearsed job: those that its logs show, and those that its files predict on an NPU."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ascend_adapt.errors import SettingsError
from ascend_adapt.launch.jobs.context import Context
from ascend_adapt.launch.one_host.causes import LARGEST_LOG
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory
from ascend_adapt.launch.placement.plan import Plan
from ascend_adapt.problems import explanation, known, log_text, reading
from ascend_adapt.problems.facts import Facts, of_names
from ascend_adapt.problems.problem import Problem
from ascend_adapt.problems.reading import Reading


def lines(context: Context, plan: Plan, run_dir: RunDirectory) -> list[str]:
    """Return one line per known problem; if there are none, return one line that lists what was searched."""
    problems, _ = known.problems(context.environ)
    request = context.request
    words = (request.target, *request.arguments)
    script = Path(request.target.replace(".", "/") + ".py") if request.form == "module" else None
    files = reading.named_files([*words, str(script)] if script else words)
    read, unread = _read(files)
    facts = _facts(context, problems, functools.reduce(operator.add, [reading.read_command(words), *read]))
    logs = [run_dir.rank_log(command.rank) for command in plan.ranks if command.rank is not None]
    logs = [log for log in logs if log.is_file()]
    found = list(dict.fromkeys([*_predicted(problems, facts), *_shown(problems, facts, logs, run_dir)]))
    searched = ", ".join(["the command line", *map(str, files)])
    none = f"known problems on NPUs: none found in {searched} and {len(logs)} rank log{'s' * (len(logs) != 1)}"
    return [*unread, *(found or [none])]


def _read(files: list[Path]) -> tuple[list[Reading], list[str]]:
    read, unread = [], []
    for file in files:
        try:
            read.append(reading.read(file))
        except SettingsError as error:
            unread.append(f"not searched for known problems: {error}")
    return read, unread


def _facts(context: Context, problems: list[Problem], read: Reading) -> Facts:
    names = {name for problem in problems if problem.when for name in problem.when.distributions}
    facts = of_names(names, context.environ, "npu", read)
    # Only the ranks have the emulated torch_npu on their path.
    version = context.emulation.torch_npu.version if context.emulation is not None else ""
    return replace(facts, versions={**facts.versions, "torch-npu": version})


def _predicted(problems: list[Problem], facts: Facts) -> Iterator[str]:
    for one in explanation.predict(problems, facts):
        where = "; ".join(one.shown_by[:3])
        kind = "known problem on NPUs" if one.must_fix else "note on NPUs"
        yield f"{kind}: {where} — {one.cause} — {one.do}"


def _shown(problems: list[Problem], facts: Facts, logs: list[Path], run_dir: RunDirectory) -> Iterator[str]:
    # The cause of a failure has already been printed. If the disk is full, the job's file may be missing.
    printed = "\n".join(Job.read(run_dir)[1].get("failure", ())) if run_dir.job.is_file() else ""
    named = set()
    for log in logs:
        for one in explanation.explain(log_text.read(log, LARGEST_LOG), problems, facts):
            if one.problem.name not in named and f"cause: {one.cause}" not in printed:
                named.add(one.problem.name)
                yield f"known problem: {log.name}:{one.line}: {one.shown_by[0]} — {one.cause} — {one.do}"
