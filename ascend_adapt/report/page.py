"""The report as one HTML page without other files or network access. Its script shows the values under the pointer."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from ascend_adapt import __version__
from ascend_adapt.report import sections
from ascend_adapt.report.differences import compare
from ascend_adapt.report.elements import Markup, element
from ascend_adapt.report.run import FAILED, RUNNING, Run


def page(runs: Sequence[Run], refresh_s: int | None = None) -> str:
    """Return the page of one run, or of two compared runs. ``refresh_s`` makes browsers reload it while a job runs."""
    labels = _labels(runs)
    title = " and ".join(labels)
    content = [(name, markup) for name, markup in _sections(runs, labels) if markup]
    script, style = _file("page.js"), _file("page.css")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'"
    is_live = refresh_s is not None and any(run.state == RUNNING for run in runs)
    return "<!doctype html>\n" + element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="refresh", content=refresh_s) if is_live else None,
            element("title", f"{title} - ascend-adapt report"),
            element("style", Markup(style)),
        ),
        element(
            "body",
            _header(runs, labels, [name for name, _ in content], is_live),
            element(
                "main",
                *(
                    element("section", element("h2", name, id=f"{_id(name)}-head"), markup, id=_id(name))
                    for name, markup in content
                ),
            ),
            element("footer", f"ascend_adapt {__version__}, written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}"),
            element("script", Markup(script)),
        ),
        lang="en",
    )


def _sections(runs: Sequence[Run], labels: Sequence[str]) -> Iterable[tuple[str, Markup | None]]:
    if len(runs) > 1:
        yield "Curves", sections.curves(runs, labels)
        yield "Differences", sections.differences(compare(*runs), labels)
        for run, label in zip(runs, labels, strict=True):
            yield f"Errors of {label}", sections.errors(run)
        return
    (run,) = runs
    if run.state == FAILED:
        yield "Errors", sections.errors(run)
    yield "Curves", sections.curves(runs, labels)
    if run.state != FAILED:
        yield "Errors", sections.errors(run)
    yield "Findings", sections.findings(run)
    yield "Ranks", sections.layout(run)
    yield "Patches", sections.patches(run)
    yield "Kernels", sections.kernels(run)
    yield "Evidence", sections.evidence(run)
    yield "Environment", sections.environment(run)


def _header(runs: Sequence[Run], labels: Sequence[str], names: Sequence[str], is_live: bool) -> Markup:
    links = element("nav", *(element("a", name, href=f"#{_id(name)}") for name in names), aria_label="Sections")
    live = element("p", "This page is updated while the job runs.", class_="note") if is_live else None
    if len(runs) > 1:
        return element(
            "header",
            element("h1", "Two runs compared"),
            *(
                element("p", element("span", class_=f"key run{number}"), label, " ", _state(run))
                for number, (run, label) in enumerate(zip(runs, labels, strict=True))
            ),
            live,
            *(sections.failure(run, label) for run, label in zip(runs, labels, strict=True)),
            sections.facts_compared(runs, labels),
            links,
        )
    (run,) = runs
    return element(
        "header",
        element("h1", labels[0]),
        element("p", _state(run), element("span", f" {run.outcome}", class_="note")),
        element("p", element("code", run.name), class_="note") if run.name != labels[0] else None,
        live,
        sections.failure(run),
        sections.tiles(run),
        links,
    )


def _state(run: Run) -> Markup:
    return element("span", run.state, class_=f"state {run.state.split()[-1]}")


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return a label for each run: the shortest end of its path that differs from the other run's."""
    parts = [Path(run.name).resolve().parts[1:] for run in runs]
    for count in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(one[-count:]) for one in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{run.name} ({number})" for number, run in enumerate(runs, 1)]


def _id(name: str) -> str:
    return "section-" + "".join(character if character.isalnum() else "-" for character in name.lower())


def _file(name: str) -> str:
    return (files("ascend_adapt.report") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
