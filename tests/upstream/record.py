"""Record the facts of every release: `make record-upstreams`. Downloads what is not in .releases; imports nothing."""

from __future__ import annotations

import release_table
from upstream_releases import UPSTREAMS

from ascend_adapt.testing import release_matrix, upstream_facts


def main() -> None:
    """Write tests/upstream/<distribution>.json and the tables of docs/patches.md."""
    for upstream in UPSTREAMS:
        trees = {release: upstream.tree(release) for release in upstream.releases()}
        record = upstream_facts.record(upstream.distribution, upstream.patches(), trees)
        record.save(upstream.record)
        rows = [row for release in trees for row in upstream.rows(record, release)]
        for row in rows:
            if row.problem:
                print(f"{row}: {row.problem}")
        print(f"{upstream.distribution}: {release_matrix.summary(rows)}")
    release_table.main()


if __name__ == "__main__":
    main()
