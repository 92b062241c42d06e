"""Through torch_npu's autograd nodes, differentiable operators have the values and gradients of their definitions."""

from __future__ import annotations

import pytest
from emulation.operators import attention_cases, gradient_cases


@pytest.mark.parametrize("name", [case.name for case in gradient_cases.CASES])
def test_operator(results_of, name):
    assert results_of("gradient_cases")[name] == ""


@pytest.mark.parametrize("name", [case.name for case in attention_cases.CASES])
def test_attention(results_of, name):
    assert results_of("attention_cases")[name] == ""
