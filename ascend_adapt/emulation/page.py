"""The rehearsal's findings as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ascend_adapt.emulation.finding import Finding

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.4em .6em;"
    "border-bottom:1px solid #ddd}code{font-family:ui-monospace,monospace}"
)


def page(summary: Sequence[str], findings: Sequence[Finding]) -> str:
    """Return the page: the lines of the terminal summary, and a row for each finding."""
    rows = "\n".join(
        f"<tr><td><code>{html.escape(found.place)}</code></td><td>{html.escape(found.text())}</td>"
        f"<td>{html.escape(found.instead)}</td></tr>"
        for found in findings
    )
    table = f"<table><tr><th>line</th><th>found</th><th>instead</th></tr>\n{rows}</table>" if findings else ""
    lines = "".join(f"<li>{html.escape(line)}</li>\n" for line in summary)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Rehearsal</title><style>{_STYLE}</style>\n'
        f"<h1>Rehearsal on an emulated NPU</h1>\n{table}\n<ul>{lines}</ul></html>\n"
    )
