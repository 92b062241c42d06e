from __future__ import annotations

import pytest
from emulation.operators import kernel_cases


@pytest.mark.parametrize("name", [case.name for case in kernel_cases.CASES])
def test_npu_backend(results_of, name):
    assert results_of("kernel_cases")[name] == ""
