"""The rehearsal's findings as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ascend_adapt.emulation.finding import Finding

_STYLE = (
    ":root{color-scheme:light dark;--rule:#8885}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.4em .6em .4em 0;"
    "border-bottom:1px solid var(--rule)}code{font:13px ui-monospace,monospace}"
    "@media(max-width:640px){thead{display:none}tr,td{display:block;border:0;padding:0}"
    "tr{border-bottom:1px solid var(--rule);padding:.6em 0}}"
)


def page(summary: Sequence[str], findings: Sequence[Finding]) -> str:
    """Return the HTML page with the lines of the summary, and a table row for each finding."""
    rows = "\n".join(
        f"<tr><td><code>{html.escape(found.place)}</code></td><td>{html.escape(found.text())}</td>"
        f"<td>{html.escape(found.instead)}</td></tr>"
        for found in findings
    )
    table = (
        f"<table><thead><tr><th>line</th><th>found</th><th>instead</th></tr></thead>\n{rows}</table>"
        if findings
        else ""
    )
    lines = "".join(f"<li>{html.escape(line)}</li>\n" for line in summary)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Rehearsal</title><style>{_STYLE}</style>\n"
        f"<h1>Rehearsal on an emulated NPU</h1>\n<ul>{lines}</ul>\n{table}</html>\n"
    )
