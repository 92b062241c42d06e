"""Record the facts of every release: `make record-upstreams`. Downloads what is not in .releases; imports nothing.

Code bases that are no distributions are read where ASCEND_ADAPT_UPSTREAMS has them.
"""

from __future__ import annotations

import os

import code_base_records
import release_table
from code_bases import NotHere
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
    for one in code_base_records.KNOWN:
        try:
            checkout = one.checkout(os.environ)
        except NotHere as error:
            print(f"not recorded: {one.folder}: {error}")
        else:
            code_base_records.record(one, checkout).save(code_base_records.path_of(one))
    release_table.main()


if __name__ == "__main__":
    main()
