"""Prints a comparison for a person."""

from __future__ import annotations

import shlex

from ascend_adapt.alignment.findings import Finding, Report


def show(report: Report, a: str, b: str) -> None:
    """Print where two recordings diverge, or how closely they agree."""
    first = report.first
    steps = ", ".join(map(str, report.steps))
    if first is None:
        print(f"{a} (A) and {b} (B) agree in steps {steps}: no module differs by more than its dtype allows")
        for phase, (error, where) in report.largest.items():
            print(f"  largest difference, {phase}: {error:.2g} at {where}")
    else:
        _show_first(first, a, b)
        others = [one for one in report.findings if one is not first]
        for one in others:
            print(f"  rank {one.rank}, step {one.step}, {one.phase}: {one.module}: {one.what}")
    for note in report.notes:
        print(f"  note: {note}")
    if first is not None and first.replayable:
        words = f"--record NEW --record-steps {first.step} --record-inputs {shlex.quote(first.module)}"
        print(f"  next: save its inputs with ascend-run {words} ..., and replay it (docs/alignment.md)")


def _show_first(first: Finding, a: str, b: str) -> None:
    place = f", call {first.call}" if first.call else ""
    print(
        f"{a} (A) and {b} (B) diverge in step {first.step}, {first.phase}, at {first.module}{place} (rank {first.rank})"
    )
    print(f"  {first.what}")
    if first.error not in (0.0, float("inf")):
        print(f"  relative difference {first.error:.2g}, allowed {first.allowed:.2g}")
    for line in first.details:
        print(f"  {line}")
