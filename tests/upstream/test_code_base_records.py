"""The patches of a code base judged on the recorded facts of its checkout, and those on a real one if there is one."""

from __future__ import annotations

import os

import code_base_records
import pytest
from code_bases import CodeBase, NotHere

from ascend_adapt.testing import faults, upstream_facts

EACH = pytest.mark.parametrize("one", code_base_records.KNOWN, ids=lambda one: one.folder)


@EACH
def test_every_target_is_there_and_has_the_fault(one: CodeBase) -> None:
    record = upstream_facts.load(code_base_records.path_of(one))
    patches = code_base_records.patches_of(one)
    assert sorted(record.facts) == sorted(map(upstream_facts.full_name, patches)), "make record-upstreams"
    assert patches
    for patch in patches:
        facts = record.of(patch, one.commit)
        assert facts.digests or patch.patch.kind == "add", patch
        assert facts.fault != faults.ABSENT, (patch, facts.reason)


@EACH
def test_the_record_is_what_a_checkout_holds(one: CodeBase) -> None:
    try:
        checkout = one.checkout(os.environ)
    except NotHere as error:
        pytest.skip(f"not checked: {error}")
    assert code_base_records.record(one, checkout) == upstream_facts.load(code_base_records.path_of(one))
