"""Every test of kernels starts without choices, and without requests from the environment."""

from __future__ import annotations

import pytest

from ascend_adapt.kernels import dispatch, requests, verification


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    for name in ("ASCEND_ADAPT_KERNELS", "ASCEND_ADAPT_NUMERICS", "ASCEND_ADAPT_DETERMINISTIC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(verification, "_known", {})
    dispatch.forget()
    yield
    requests.state(None)
    dispatch.forget()
