"""The table of patches and releases in docs/patches.md, made from the recorded facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upstream_releases import ROOT, UPSTREAMS, Upstream

from ascend_adapt.testing import faults, release_matrix, upstream_facts
from ascend_adapt.testing.release_matrix import ReleaseRow

PAGE = ROOT / "docs" / "patches.md"
BEGIN, END = "<!-- made by `make record-upstreams` -->\n", "<!-- end of what is made -->\n"


def page(text: str) -> str:
    """Return the page ``text`` with its tables renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(map(table, UPSTREAMS)) + END + after


def table(upstream: Upstream) -> str:
    """Return what the record of one distribution says, as Markdown."""
    record = upstream_facts.load(upstream.record)
    rows = [row for release in record.releases for row in upstream.rows(record, release)]
    lines = [
        f"{upstream.distribution} {record.releases[0]} to {record.releases[-1]}: {release_matrix.summary(rows)}.",
        "",
        "| patch | changes | patched | skipped | the fault in the source |",
        "|---|---|---|---|---|",
    ]
    for one in upstream.patches():
        own = [row for row in rows if row.patch == one.full_name]
        patched, skipped = ([row for row in own if row.decision == word] for word in ("patch", "skip"))
        cells = (
            f"`{one.name}`",
            f"{one.patch.kind} `{one.patch.target}`",
            _range(patched, record.releases),
            _range(skipped, record.releases),
            _fault(patched, skipped),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _range(rows: Sequence[ReleaseRow], releases: Sequence[str]) -> str:
    """Return which of the releases ``rows`` are, as ranges with their counts."""
    runs: list[list[str]] = []
    wanted = {row.release for row in rows}
    for release, before in zip(releases, ("", *releases), strict=False):
        if release in wanted:
            if before not in wanted:
                runs.append([])
            runs[-1].append(release)
    return ", ".join(f"{run[0]} to {run[-1]} ({len(run)})" if len(run) > 1 else run[0] for run in runs) or "none"


def _fault(patched: Sequence[ReleaseRow], skipped: Sequence[ReleaseRow]) -> str:
    unjudged = [row for row in (*patched, *skipped) if row.fault == faults.NOT_JUDGED]
    if unjudged:
        return f"not judged: {unjudged[0].reason}"
    reported = []
    for rows, word in ((patched, "patched"), (skipped, "skipped")):
        if rows:
            present = sum(row.fault == faults.PRESENT for row in rows)
            reported.append(f"in {present} of {len(rows)} {word}")
    return ", ".join(reported)


def main() -> None:
    """Write the page."""
    path: Path = PAGE
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
