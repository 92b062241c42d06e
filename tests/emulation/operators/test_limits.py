"""A call that a real NPU refuses, or for which it returns a wrong result, raises with the limit it breaks."""

from __future__ import annotations

import pytest
from emulation.operators import misuse_cases

from ascend_adapt import npu_limits


@pytest.mark.parametrize("name", [case.name for case in misuse_cases.CASES])
def test_misuse_is_named(results_of, name):
    assert results_of("misuse_cases")[name] == ""


def test_every_limit_has_a_misuse():
    planted = {case.limit for case in misuse_cases.CASES}
    assert [limit for limit in npu_limits.all_limits() if limit not in planted] == []


def test_every_limit_says_where_it_is_documented():
    for limit in npu_limits.all_limits():
        assert limit.source, limit
        assert limit.text == limit.text.strip(), limit
