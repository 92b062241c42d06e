"""The patches of a code base judged on the recorded facts of its checkout, and those on a real one if there is one."""

from __future__ import annotations

import os
from pathlib import Path

import code_base_records
import pytest
from code_bases import CodeBase, NotHere

from ascend_adapt.runtime import code_bases
from ascend_adapt.testing import faults, upstream_facts

EACH = pytest.mark.parametrize("one", code_base_records.KNOWN, ids=lambda one: one.folder)


@EACH
def test_every_target_is_there_and_has_the_fault(one: CodeBase) -> None:
    record = upstream_facts.load(code_base_records.path_of(one))
    patches = code_base_records.patches_of(one)
    assert sorted(record.facts) == sorted(one.full_name for one in patches), "make record-upstreams"
    assert patches
    for patch in patches:
        facts = record.of(patch, one.commit)
        assert facts.digests or patch.patch.kind == "add", patch
        assert facts.fault != faults.ABSENT, (patch, facts.reason)


def checkout_of(one: CodeBase) -> Path:
    try:
        return one.checkout(os.environ)
    except NotHere as error:
        pytest.skip(f"not checked: {error}")


@EACH
def test_a_checkout_is_its_host_and_no_other(one: CodeBase) -> None:
    checkout = checkout_of(one)
    assert [name for name, host in code_bases.KNOWN.items() if not host.owns(checkout)] == [
        code_base_records.HOSTS[one.folder]
    ]


@EACH
def test_the_record_is_what_a_checkout_holds(one: CodeBase) -> None:
    checkout = checkout_of(one)
    assert code_base_records.record(one, checkout) == upstream_facts.load(code_base_records.path_of(one))
