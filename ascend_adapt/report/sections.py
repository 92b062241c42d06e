"""Sections of a report: each returns the markup of one subject of a run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ascend_adapt.diagnosis.status_report import IN_WORDS, full_name
from ascend_adapt.emulation.rehearsal import DOES_NOT, PROVES
from ascend_adapt.patches.declare.outcome import BAD_STATES, Outcome
from ascend_adapt.report import metrics
from ascend_adapt.report.chart import Line, chart
from ascend_adapt.report.differences import Compared
from ascend_adapt.report.elements import Markup, element, joined
from ascend_adapt.report.layout import Layout
from ascend_adapt.report.metrics import METRICS, Metric
from ascend_adapt.report.run import FAILED, KernelChoice, Problem, Run
from ascend_adapt.report.scale import short

_MOST_RANKS = 512
_MOST_ROWS = 120
_MOST_PROBLEMS = 20
_MOST_TEXT = 4000
_MOST_VALUE = 300
_TIERS = {
    "emulated": (PROVES, DOES_NOT),
    "cpu": (
        "this proves: the job runs with these patches, and its numbers on a CPU",
        "it does not prove: an NPU's numbers, limits of its operators, or speed (evidence: cpu)",
    ),
    "cuda": (
        "this proves: the job runs with these patches, and its numbers and speed on this GPU",
        "it does not prove: an NPU's numbers, limits of its operators, or speed (evidence: cuda)",
    ),
    "hardware": ("this run is evidence from an NPU: numbers and speed are this host's", ""),
}


def tiles(run: Run) -> Markup:
    """Return tiles with the most important figures of a run."""
    return element(
        "dl",
        *(
            element("div", element("dt", label), element("dd", value, element("small", more) if more else None))
            for label, value, more in _facts(run)
        ),
        class_="tiles",
    )


def facts_compared(runs: Sequence[Run], labels: Sequence[str]) -> Markup:
    """Return the same figures of two runs side by side."""
    facts = [{label: (value, more) for label, value, more in _facts(run)} for run in runs]
    rows = []
    for label in dict.fromkeys(label for of_run in facts for label in of_run):
        cells = [of_run.get(label, ("", "")) for of_run in facts]
        rows.append((label, *(f"{value} ({more})" if more else value for value, more in cells)))
    return card(table(("", *labels), rows))


def _facts(run: Run) -> Iterator[tuple[str, str, str]]:
    # Of several variants, the first covers every iteration.
    by_metric = {curve.metric: curve for curve in reversed(run.curves) if curve.finite}
    if curve := by_metric.get(metrics.LOSS):
        x, y = curve.finite[-1]
        yield "Last training loss", short(y), f"{curve.axis} {short(x)}"
    if curve := by_metric.get(metrics.VALIDATION):
        x, y = min(curve.finite, key=lambda one: one[1])
        yield "Best validation loss", short(y), f"{curve.axis} {short(x)}"
    for metric, label in (
        (metrics.TOKENS_PER_S, "Tokens per second"),
        (metrics.SAMPLES_PER_S, "Samples per second"),
        (metrics.SECONDS, "Seconds per iteration"),
        (metrics.MFU, "MFU, %"),
    ):
        if curve := by_metric.get(metric):
            yield label, short(statistics.median(y for _, y in curve.finite)), "median"
    if curve := by_metric.get(metrics.MEMORY):
        yield "Peak device memory", f"{short(max(y for _, y in curve.finite))} GB", "rank that logs"
    if run.hosts:
        hosts = len(set(run.hosts.values()))
        yield "Ranks", str(len(run.hosts)), f"on {hosts} host{'s' * (hosts != 1)}"
    if run.device:
        kind, _, reason = run.device.partition(" ")
        yield "Device", kind, reason.strip("()")
    if run.tier:
        yield "Evidence", run.tier, ""
    if run.seconds is not None:
        yield "Duration", _duration(run.seconds), ""
    if run.patches is not None:
        bad = len(run.patches.bad)
        yield "Patches applied", str(len(run.patches.applying)), f"{bad} need attention" if bad else "0 need attention"


def failure(run: Run, label: str = "The job") -> Markup | None:
    """Return a card with the rank that failed first, why, and the next step, or None if the job did not fail."""
    if run.state != FAILED:
        return None
    lines = run.failure or tuple(
        line
        for one in run.problems[:1]
        for line in (f"{one.place}: {one.text}", *((f"next step: {one.next_step}",) if one.next_step else ()))
    )
    return element(
        "section",
        element("p", element("b", f"{label} failed: {run.outcome}")),
        *(element("p", line) for line in lines),
        class_="card failed",
    )


def curves(runs: Sequence[Run], labels: Sequence[str]) -> Markup:
    """Return the charts. The curves of two runs are drawn in the same charts."""
    by_metric: dict[Metric, list[Line]] = {}
    for number, run in enumerate(runs):
        for curve in run.curves:
            by_metric.setdefault(curve.metric, []).append(Line(curve, number))
    charts = []
    for metric in METRICS:
        # Iterations and epochs cannot share an axis. If two runs differ in it, only the first run's curves are drawn.
        lines = by_metric.get(metric, [])
        lines = [line for line in lines if line.curve.axis == lines[0].curve.axis]
        if lines:
            named = [Line(line.curve, line.run, _label(line, lines, labels)) for line in lines]
            charts.append(chart(metric, named, metric.name))
    notes = [element("p", note, class_="note") for run in runs for note in run.notes]
    return joined(*notes, element("div", *charts, class_="charts") if charts else None)


def _label(line: Line, lines: Sequence[Line], labels: Sequence[str]) -> str:
    if len(lines) == 1 and len(labels) == 1 and not line.curve.variant:
        return ""
    parts = (labels[line.run] if len(labels) > 1 else "", line.curve.variant)
    return ", ".join(filter(None, parts)) or "every iteration"


def layout(run: Run) -> Markup | None:
    """Return the placement of ranks, as a grid of the parallel axes if known, else by host."""
    if not run.hosts and run.layout is None:
        return None
    by_host: dict[str, list[int]] = {}
    for rank, host in run.hosts.items():
        by_host.setdefault(host, []).append(rank)
    hosts = [(host, str(len(ranks)), ranges(ranks)) for host, ranks in by_host.items()]
    grid = run.layout
    return card(
        element("p", f"{grid.world_size} rank{'s' * (grid.world_size > 1)}: {grid}") if grid is not None else None,
        _grid(grid, run) if grid is not None and 1 < grid.world_size <= _MOST_RANKS else None,
        table(("host", "count", "ranks"), hosts) if hosts else None,
    )


def _grid(grid: Layout, run: Run) -> Markup:
    columns = [(data, tensor) for data in range(grid.data) for tensor in range(grid.tensor)]
    many_hosts = len(set(run.hosts.values())) > 1
    rows = []
    for stage in range(grid.pipeline):
        ranks = [grid.rank(stage, data, tensor) for data, tensor in columns]
        cells = (
            element("td", str(rank), element("small", run.hosts.get(rank, "")) if many_hosts else None)
            for rank in ranks
        )
        rows.append(element("tr", element("th", f"stage {stage}", scope="row"), *cells))
    head = (element("th", f"data {data}, tensor {tensor}", scope="col") for data, tensor in columns)
    top = element("thead", element("tr", element("td"), *head))
    return element("div", element("table", top, element("tbody", *rows), class_="ranks"), class_="scroll", tabindex=0)


def patches(run: Run) -> Markup | None:
    """Return each patch that was applied or needs attention, with its purpose, and the other patches by state."""
    report = run.patches
    if report is None or not report.outcomes:
        return None
    shown = {id(one) for one in (*report.bad, *report.applying)}
    others = sorted((one for one in report.outcomes if id(one) not in shown), key=lambda one: one.state)
    return card(
        element("p", report.summary()),
        *(element("p", problem, class_="bad") for problem in report.problems),
        *(_patch(alike, list(group)) for alike, group in groupby((*report.bad, *report.applying), key=_alike)),
        *(
            element(
                "details",
                element("summary", f"{len(of_state := list(group))} {IN_WORDS.get(state, state)}"),
                element("p", *_names(of_state), class_="note"),
            )
            for state, group in groupby(others, key=lambda one: one.state)
        ),
    )


def _alike(outcome: Outcome) -> tuple[str, ...]:
    evidence = ", ".join(one.partition(":")[0] for one in outcome.evidence) or "none for these versions"
    return outcome.state, evidence, outcome.without, outcome.why, outcome.reason


def _patch(alike: tuple[str, ...], outcomes: Sequence[Outcome]) -> Markup:
    """Return the row of patches that differ only in their targets."""
    state, evidence, without, why, reason = alike
    is_bad = state in BAD_STATES
    return element(
        "div",
        element("span", state, class_="tag bad" if is_bad else "tag"),
        element("span", f"evidence: {evidence}", class_="tag"),
        element("p", f"{without} without it: {why}") if why else None,
        element("p", reason, class_="bad" if is_bad else "note") if reason else None,
        *(
            element("p", element("code", full_name(one), class_="name"), element("code", one.target), class_="note")
            for one in outcomes
        ),
        class_="patch",
    )


def _names(outcomes: Iterable[Outcome]) -> Iterator[Markup]:
    for reason, group in groupby(sorted(outcomes, key=lambda one: one.reason), key=lambda one: one.reason):
        listed = ", ".join(full_name(one) for one in group)
        yield joined(f"{reason}: {listed}. " if reason else f"{listed}. ")


def kernels(run: Run) -> Markup | None:
    """Return the backend of each kernel, and for how many kinds of calls it was used."""
    if not run.kernels:
        return None
    rows = []
    for (kernel, backend), group in groupby(run.kernels, key=lambda one: (one.kernel, one.backend)):
        calls: list[KernelChoice] = list(group)
        compared = Counter(one.compared for one in calls if one.compared)
        agrees = "; ".join(f"{count} compared with {what}" for what, count in compared.items())
        rows.append((kernel, backend, str(len(calls)), agrees, cut(calls[0].call)))
    return card(table(("kernel", "backend", "kinds of calls", "verified", "such as"), rows))


def findings(run: Run) -> Markup | None:
    """Return the findings of a rehearsal on the emulated NPU, with their replacements."""
    if not run.findings and not run.known_problems:
        return None
    rows = [(one.place, cut(one.what), one.instead) for one in run.findings[:_MOST_ROWS]]
    return card(
        table(("line", "found", "instead"), rows) if rows else None,
        _left_out(len(run.findings), _MOST_ROWS),
        *(element("p", line, class_="note") for line in run.known_problems[:_MOST_ROWS]),
    )


def errors(run: Run) -> Markup | None:
    """Return each error with its place, cause and next step."""
    if not run.problems:
        return None
    return joined(*map(_problem, run.problems[:_MOST_PROBLEMS]), _left_out(len(run.problems), _MOST_PROBLEMS))


def _problem(problem: Problem) -> Markup:
    return card(
        element("p", element("b", problem.place), ": ", cut(problem.text, _MOST_TEXT)),
        element("p", f"cause: {problem.cause}") if problem.cause else None,
        element("p", f"next step: {problem.next_step}") if problem.next_step else None,
        element("details", element("summary", "Traceback"), element("pre", problem.details[-_MOST_TEXT:]), open=True)
        if problem.details
        else None,
    )


def evidence(run: Run) -> Markup | None:
    """Return what a run on this kind of device proves, and what it does not. A failed run proves nothing."""
    if run.tier not in _TIERS or run.state == FAILED:
        return None
    return card(*(element("p", _sentence(line)) for line in _TIERS[run.tier] if line))


def environment(run: Run) -> Markup | None:
    """Return the versions of packages, and the settings."""
    if not run.versions and not run.settings:
        return None
    settings = [(key, cut(value)) for key, value in sorted(run.settings.items())]
    return card(
        table(("package", "version"), list(run.versions.items())) if run.versions else None,
        element(
            "details",
            element("summary", f"{len(settings)} setting{'s' * (len(settings) > 1)}"),
            table(("setting", "value"), settings),
        )
        if settings
        else None,
    )


def differences(compared: Sequence[Compared], labels: Sequence[str]) -> Markup:
    """Return the settings, versions, patches and kernels that differ between two runs; some may share a row."""
    parts: list[Markup | None] = []
    for kind in compared:
        names: dict[tuple[str, str], list[str]] = {}
        for one in kind.differences[:_MOST_ROWS]:
            names.setdefault((cut(one.first), cut(one.second)), []).append(one.name)
        rows = [(", ".join(of_pair), *pair) for pair, of_pair in names.items()]
        parts.append(element("h3", f"{kind.title}: {len(kind.differences)} differ, {kind.equal} are equal"))
        if rows:
            parts.append(table(("name", *labels), rows))
        parts.append(_left_out(len(kind.differences), _MOST_ROWS))
    return card(*parts) if parts else card(element("p", "the runs have no recorded facts in common"))


def card(*children: Markup | None) -> Markup:
    """Return a card with this content."""
    return element("div", *children, class_="card")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that a narrow screen shows as a list."""
    return element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
        element(
            "tbody",
            *(
                element(
                    "tr", *(element("td", cell, data_head=head or None) for head, cell in zip(heads, row, strict=True))
                )
                for row in rows
            ),
        ),
        class_="stacked" if len(heads) > 2 else None,
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text with ranges, such as ``0 to 7, 16``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)


def cut(value: str, at_most: int = _MOST_VALUE) -> str:
    """Return text, cut to a maximum length."""
    return value if len(value) <= at_most else f"{value[:at_most]}... ({len(value)} characters)"


def _left_out(count: int, at_most: int) -> Markup | None:
    return element("p", f"and {count - at_most} more", class_="note") if count > at_most else None


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _duration(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{seconds:.3g} s"
