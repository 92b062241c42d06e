from __future__ import annotations

import pytest
from emulation.operators import behaviour_cases


@pytest.mark.parametrize("name", [case.name for case in behaviour_cases.CASES])
def test_operator(results_of, name):
    assert results_of("behaviour_cases")[name] == ""
